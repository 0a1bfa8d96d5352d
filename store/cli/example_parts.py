"""Parts of the examples that commands use: pipelines by their short names, and the front end of servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from store.server.streaming.front_end import FrontEnd

PIPELINES: Final[dict[str, str]] = {
    "trading": "store.examples.trading.desk:pipeline",
}
"""The pipelines of the examples that this package contains."""


def front_end(**settings: Any) -> FrontEnd:
    """Return the front end of the trading example; the arguments are fields of its `TradingSettings`."""
    from store.examples.trading.front_end.settings import TradingSettings
    from store.examples.trading.front_end.trading_front_end import TradingFrontEnd

    return TradingFrontEnd(TradingSettings(**settings))
