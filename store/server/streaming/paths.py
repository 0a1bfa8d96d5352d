"""The paths of streams, and the log or the run that each stream follows."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from store.server.routing import WEBSOCKET, LayerRoute
from store.wire import paths

LOG_SOCKET: Final = f"{paths.LOG}/ws"
VIEWER_SOCKET: Final = "/ws/stream/{run_id}"
"""The path of the WebSocket for web front ends that are older than Rollbook."""


class Followed(NamedTuple):
    """The path template of a stream, and the id in the path."""

    template: str
    id: str | None


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile("([^/]+)".join(re.escape(part) for part in re.split(r"\{\w+\}", template)))


SOCKETS: Final = tuple(LayerRoute(WEBSOCKET, path, "reader") for path in (LOG_SOCKET, paths.RUN_SOCKET, VIEWER_SOCKET))

_EVENTS: Final = {template: _pattern(template) for template in (paths.LOG, paths.HISTORY, paths.RUN_STREAM)}
_SOCKETS: Final = {template: _pattern(template) for template in (each.path for each in SOCKETS)}


def events(path: str) -> Followed | None:
    """Return the stream of server-sent events at a path within a partition, or None if the path has no stream."""
    return _find(_EVENTS, path)


def socket(path: str) -> Followed | None:
    """Return the stream of a WebSocket at a path within a partition, or None if the path has no stream."""
    return _find(_SOCKETS, path)


def _find(patterns: dict[str, re.Pattern[str]], path: str) -> Followed | None:
    for template, pattern in patterns.items():
        if match := pattern.fullmatch(path):
            return Followed(template, unquote(match[1]) if match.groups() else None)
    return None
