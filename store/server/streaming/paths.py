"""The paths of streams, and the log or the run that each stream follows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote

from store.server.routing import WEBSOCKET, LayerRoute
from store.wire import paths

LOG_SOCKET: Final = f"{paths.LOG}/ws"


class Followed(NamedTuple):
    """The path template of a stream, and the id in the path."""

    template: str
    id: str | None


SOCKETS: Final = tuple(LayerRoute(WEBSOCKET, path, "reader") for path in (LOG_SOCKET, paths.RUN_SOCKET))


class StreamPaths:
    """Streams by path template.

    Args:
        templates: the path templates, each with at most one id.
    """

    def __init__(self, templates: Iterable[str]) -> None:
        literals = {template: map(re.escape, re.split(r"\{\w+\}", template)) for template in templates}
        self._patterns = {template: re.compile("([^/]+)".join(parts)) for template, parts in literals.items()}

    def find(self, path: str) -> Followed | None:
        """Return the stream at a path within a partition, or None if the path has no stream."""
        for template, pattern in self._patterns.items():
            if match := pattern.fullmatch(path):
                return Followed(template, unquote(match[1]) if match.groups() else None)
        return None
