"""The front end of trading pipelines, as an application serves it."""

from __future__ import annotations

from types import MappingProxyType

from store.examples.trading.front_end.routes import ROUTES
from store.examples.trading.front_end.run_stream import SOCKET, open_run_stream
from store.examples.trading.front_end.settings import TradingSettings
from store.server.streaming.front_end import FrontEnd


class TradingFrontEnd(FrontEnd):
    """The routes and streams of the front end, with their settings."""

    routes = ROUTES
    sockets = MappingProxyType({SOCKET: open_run_stream})

    def __init__(self, settings: TradingSettings | None = None) -> None:
        self.settings = settings or TradingSettings()
