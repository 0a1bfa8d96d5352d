"""The routes of a server with the trading front end, as `rollbook serve` has them."""

from __future__ import annotations

from typing import Final

from store.examples.trading.front_end.trading_front_end import TradingFrontEnd
from store.server import app

ROUTES: Final = (*app.ROUTES, *TradingFrontEnd.routes)
PROTECTED: Final = (*app.PROTECTED, *TradingFrontEnd.protected())
