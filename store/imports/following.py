"""Import of files with traces while other programs write them.

A file in the folder contains the place up to which each file with traces was imported. Without this file, all traces
are read again, and nothing is stored twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import orjson
from pydantic import Field, ValidationError

from store.errors import StoreError
from store.exports.manifest import replace_file
from store.imports.importing import import_rollouts
from store.imports.report import ImportResult, Skipped
from store.imports.rollouts import ForeignRollout
from store.imports.traces import FILE, SOURCE, TraceFolder, files_named, records_of_line
from store.interface.store import Store
from store.models.enums import Frozen

POLL_SECONDS: Final = 1.0
_BYTES_PER_ROUND: Final = 16_000_000
_STOP_SECONDS: Final = 10.0
_PROBED_BYTES: Final = 4096
_LONGEST_WAIT: Final = 30.0
_log = logging.getLogger("store.imports.following")


class FilePlace(Frozen):
    """The part of a file that was imported."""

    offset: int = 0
    """The number of bytes that were imported."""
    line: int = 0
    """The number of lines that were imported."""
    inode: int = 0
    """The number of the file in its file system. A file that replaces another one has another number."""
    sha256: str = ""
    """A hash of the first and the last imported bytes.

    If these bytes of the file have another hash, the file was written again.
    """
    mtime_ns: int = 0
    """The time of the last change. A file that was written again may have the same size."""


class _Places(Frozen):
    """The content of the file with the places."""

    position: int = 0
    """The position of the log after the import. The log of a store that was restored from a backup may end before."""
    files: dict[str, FilePlace] = Field(default_factory=dict[str, FilePlace])
    """The imported part of each file, by the path of the file relative to the folder."""


class TraceFollower:
    """Import of the files with traces below a folder. The files may grow, be replaced, and appear later.

    A trace is imported when its line is complete. Each trace is imported once, also if its line is written again to a
    new file, or if the process is killed at any moment.

    Args:
        store: the store.
        folder: the folder; it may appear later.
        on_import: called after each import that stored or skipped something.
    """

    def __init__(
        self, store: Store, folder: Path, *, on_import: Callable[[ImportResult], object] = lambda _: None
    ) -> None:
        self._store = store
        self._folder = folder
        self._on_import = on_import
        self._places: dict[str, FilePlace] | None = None
        self._place_file = folder
        self._incomplete: dict[str, tuple[int, int]] = {}
        """The sizes and times of the files whose last lines are being written."""
        self._can_store_places = True

    async def follow(self, stopped: asyncio.Event, *, poll_seconds: float = POLL_SECONDS) -> None:
        """Import new traces until `stopped` is set. While the store cannot be reached, try again.

        Raises:
            StoreError: the store refuses the import, and a repetition would not help.
            OSError: a file cannot be read.
        """
        wait = poll_seconds
        stopping = asyncio.create_task(stopped.wait())
        while not stopped.is_set():
            importing = asyncio.create_task(self.catch_up())
            await asyncio.wait({importing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            # A store that cannot be reached may answer much later, so this wait has a limit. The next import does not
            # repeat what was stored.
            await asyncio.wait({importing}, timeout=_STOP_SECONDS)
            if not importing.done():
                importing.cancel()
                break
            try:
                wait = 0.0 if importing.result() else poll_seconds
            except StoreError as error:
                if not error.retryable:
                    raise
                wait = min(max(1.0, 2 * wait), _LONGEST_WAIT)
                _log.warning("the import will be tried again in %.0f s: %s", wait, error)
            await asyncio.wait({stopping}, timeout=wait)
        stopping.cancel()

    async def catch_up(self) -> bool:
        """Import the next complete lines, a few megabytes at most, and return whether there may be more.

        Raises:
            StoreError: the store cannot be reached, or refuses the import.
            OSError: a file cannot be read.
        """
        if self._places is None:
            moment = await self._store.log.position()
            self._place_file = self._folder / f".rollbook-follow-{moment.store_id}.json"
            self._places = await asyncio.to_thread(_read_places, self._place_file, moment.position)
        lines = _NewLines(self._folder, self._places, dict(self._incomplete))
        result = await import_rollouts(self._store, lines.records(), source=SOURCE)
        self._incomplete = lines.incomplete
        if lines.places != self._places:
            self._places = lines.places
            position = (await self._store.log.position()).position
            await asyncio.to_thread(self._store_places, position)
        if result.imported or result.continued or result.extended or result.skipped:
            self._on_import(result)
        return lines.has_more

    def _store_places(self, position: int) -> None:
        # The name of a file can be invalid UTF-8. orjson refuses such a name; `json` accepts it.
        content = json.dumps(_Places(position=position, files=self._places or {}).model_dump())
        try:
            replace_file(self._place_file, content.encode())
            self._can_store_places = True
        except OSError as error:
            if self._can_store_places:
                _log.warning("%s cannot be written, so a restart reads all files again: %s", self._place_file, error)
            self._can_store_places = False


def _read_places(file: Path, position: int) -> dict[str, FilePlace]:
    """Return the places in a file; none if the log ends at a position before them."""
    try:
        places = _Places.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        _log.warning("%s cannot be read, so all files are read again: %s", file, error)
        return {}
    if places.position > position:
        text = "the log ends at position %d, before position %d of the last import, so all files are read again"
        _log.warning(text, position, places.position)
        return {}
    return places.files


class _NewLines:
    """The lines of the files below a folder that were not imported yet.

    Args:
        folder: the folder.
        places: the imported parts of the files.
        incomplete: the sizes and times of the files whose last lines are incomplete.
    """

    def __init__(self, folder: Path, places: dict[str, FilePlace], incomplete: dict[str, tuple[int, int]]) -> None:
        self._folder = folder
        self.incomplete = incomplete
        """The same for the files after this read."""
        self.places = dict(places)
        """The imported parts of the files, after all yielded records are stored."""
        self.has_more = False
        self._bytes_left = _BYTES_PER_ROUND

    def records(self) -> Iterator[ForeignRollout | Skipped]:
        """Yield the rollouts in the new lines, and the reasons for lines that are not imported."""
        files = {str(file.relative_to(self._folder)): file for file in files_named(FILE, self._folder)}
        self.places = {name: place for name, place in self.places.items() if name in files}
        for name, file in files.items():
            try:
                with file.open("rb") as lines:
                    yield from self._of_file(name, file, lines)
            except FileNotFoundError:
                continue  # the file was removed meanwhile
            if self._bytes_left <= 0:
                self.has_more = True
                return

    def _of_file(self, name: str, file: Path, lines: IO[bytes]) -> Iterator[ForeignRollout | Skipped]:
        place, status = self.places.get(name, FilePlace()), os.fstat(lines.fileno())
        inode, size, mtime = status.st_ino, status.st_size, status.st_mtime_ns
        is_read = (size, mtime) == (place.offset, place.mtime_ns) or (size, mtime) == self.incomplete.get(name)
        if inode == place.inode and is_read:
            return
        if inode != place.inode or size < place.offset or _probe(lines, place.offset) != place.sha256:
            place = FilePlace(inode=inode)
        lines.seek(place.offset)
        offset, number = place.offset, place.line
        for line in lines:
            if not line.endswith(b"\n") and not _is_json(line):
                self.incomplete[name] = (size, mtime)
                break
            offset += len(line)
            number += 1
            if line.strip():
                yield from records_of_line(line, f"{file}:{number}", TraceFolder.of(file))
            self._bytes_left -= len(line)
            if self._bytes_left <= 0:
                break
        self.places[name] = FilePlace(
            offset=offset, line=number, inode=inode, sha256=_probe(lines, offset), mtime_ns=mtime
        )


def _probe(file: IO[bytes], offset: int) -> str:
    """Return the hash of the first bytes of a file, and of the last bytes before an offset."""
    file.seek(0)
    first = file.read(min(offset, _PROBED_BYTES))
    file.seek(max(0, offset - _PROBED_BYTES))
    return hashlib.sha256(first + file.read(min(offset, _PROBED_BYTES))).hexdigest()


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False
