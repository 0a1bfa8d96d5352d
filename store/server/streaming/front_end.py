"""Web front ends. An application answers their requests in addition to the store's requests. See decision 92."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any, ClassVar

from store.server.routing import WEBSOCKET, LayerRoute, StoreRoute
from store.server.streaming.feed import Feeding

OpenStream = Callable[..., AbstractAsyncContextManager[Feeding]]
"""Opens a stream. The arguments are the `SharedRuns`, the call, the id in the path, and the arguments of `Feeding`."""


class FrontEnd:
    """A front end without requests. A subclass declares the requests of its front end."""

    routes: ClassVar[Sequence[StoreRoute]] = ()
    sockets: ClassVar[Mapping[str, OpenStream]] = MappingProxyType({})
    """The streams of runs over WebSockets, by path template. They require the role `reader`."""

    settings: Any = None
    """Settings for the endpoints. An endpoint reads them as `call.app.state.front_end.settings`."""

    @classmethod
    def protected(cls) -> list[StoreRoute | LayerRoute]:
        """Return all routes and WebSockets, with the roles that they require."""
        return [*cls.routes, *(LayerRoute(WEBSOCKET, path, "reader") for path in cls.sockets)]
