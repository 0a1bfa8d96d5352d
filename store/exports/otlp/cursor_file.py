"""File with the cursor of a forwarder: the place in the log up to which it has sent spans."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from store.errors import Conflict, Incompatible
from store.exports.manifest import replace_file
from store.models.enums import Frozen

_MOST_BYTES: Final = 100_000


class ForwardState(Frozen):
    """The content of a cursor file."""

    version: Literal[1] = 1
    to: str
    """The URL of the collector."""
    cursor: str | None = None
    """The cursor of the last event whose span the collector has acknowledged; None at the beginning of the log."""
    spans: int = 0
    """The number of spans that were sent up to the cursor, since the file was created."""
    refused: int = 0
    """The number of these spans that the collector refused."""


class CursorFile:
    """The cursor file of a forwarder to one collector.

    Args:
        path: the path of the file.
        to: the URL of the collector.
    """

    def __init__(self, path: Path, to: str) -> None:
        self._path = path
        self._to = to

    @contextmanager
    def locked(self) -> Generator[None]:
        """Lock the cursor file for this process. The lock is held on a second file, which has the suffix `.lock`.

        Raises:
            Conflict: another process has locked the cursor file.
        """
        handle = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(
                    f"another process forwards spans with {self._path}", "stop it, or give another file"
                ) from None
            yield
        finally:
            os.close(handle)

    def read(self) -> ForwardState:
        """Return the content of the file. If there is no file, return the state at the beginning of the log.

        Raises:
            Conflict: the file belongs to another collector.
            Incompatible: the file is not the cursor file of a forwarder.
        """
        try:
            with self._path.open("rb") as file:
                state = ForwardState.model_validate_json(file.read(_MOST_BYTES))
        except FileNotFoundError:
            return ForwardState(to=self._to)
        except ValidationError:
            raise Incompatible(f"{self._path} is not the cursor of a forwarder", "give another file") from None
        if state.to != self._to:
            raise Conflict(
                f"{self._path} is the cursor for {state.to}, not for {self._to}",
                "give each collector a file of its own; if the collector has moved, change the URL in the file",
            )
        return state

    def write(self, state: ForwardState) -> None:
        """Replace the content. It is on disk when this method returns."""
        replace_file(self._path, state.model_dump_json(indent=2).encode() + b"\n")
