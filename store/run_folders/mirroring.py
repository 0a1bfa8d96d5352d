"""Mirror of a store's runs: run folders that are updated after each new event of the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, cast

from store.errors import Incompatible, Invalid, StoreError
from store.interface.store import Store
from store.run_folders import forms
from store.run_folders.exporting import export_run_folder, has_run
from store.run_folders.writing import write_file

PLACE_FILE: Final = ".rollbook-mirror.json"
"""The file in which the mirror stores its cursor: the folders contain the log up to this cursor."""

_LONGEST_WAIT: Final = 30.0
_log = logging.getLogger("store.folders.mirroring")


class Mirror:
    """Mirror of a store's runs as folders below a directory.

    A failed write is logged as a warning and repeated. The mirror stores its cursor beside the folders, so that it
    continues at the same position of the log after a stop or a crash.
    """

    def __init__(
        self, store: Store, root: str | Path, *, on_written: Callable[[str, Path], None] | None = None
    ) -> None:
        """Create a mirror.

        Args:
            store: the store of the runs.
            root: the directory in which the folders are written; created if it does not exist.
            on_written: a function that is called with the rollout's id and the folder after each write.
        """
        self._store = store
        self._root = Path(root)
        self._on_written = on_written
        self._place_file = self._root / PLACE_FILE

    async def follow(self) -> None:
        """Update the folders after each change of their runs, until the task is cancelled."""
        wait = 0.0
        while True:
            if await self.catch_up():
                wait = 0.0
                await self._wait_for_event()
            else:
                wait = min(max(1.0, wait * 2), _LONGEST_WAIT)
                await asyncio.sleep(wait)

    async def catch_up(self) -> bool:
        """Write the changes since the last call, and return whether all writes succeeded."""
        try:
            cursor, changed = await self._changed(self._stored_cursor())
        except (StoreError, OSError) as error:
            _log.warning("the mirror cannot read the log, and will try again: %s", error)
            return False
        failed = {rollout_id for rollout_id in sorted(changed) if not await self._write(rollout_id)}
        if failed:
            return False
        return cursor is None or await self._store_cursor(cursor)

    async def _changed(self, after: str | None) -> tuple[str | None, set[str]]:
        """Return the cursor of the last event, and the rollouts with events after the cursor `after`.

        The first value is None if no events come after that cursor.
        """
        changed: set[str] = set()
        cursor: str | None = None
        try:
            async for event in self._store.log.tail(after):
                cursor = event.cursor
                kind, _, name = event.stream.partition("/")
                if kind == "rollout":
                    changed.add(name)
        except Incompatible as error:
            if after is None:
                raise
            _log.warning("the mirror reads the log from the beginning again: %s", error)
            return await self._changed(None)
        return cursor, changed

    async def _wait_for_event(self) -> None:
        try:
            async with aclosing(cast("Any", self._store.log.tail(self._stored_cursor(), follow=True))) as events:
                async for _ in events:
                    return
        except (StoreError, OSError) as error:
            _log.warning("the mirror cannot follow the log, and will try again: %s", error)

    async def _write(self, rollout_id: str) -> bool:
        try:
            if await has_run(self._store, rollout_id):
                folder = await export_run_folder(self._store, rollout_id, self._root)
                if self._on_written is not None:
                    self._on_written(rollout_id, folder)
        except Invalid as error:
            # A repeated write would fail again, and would delay the other runs.
            _log.warning("the mirror leaves run %s out: %s", rollout_id, error)
        except (StoreError, OSError) as error:
            _log.warning("the mirror could not write run %s, and will try again: %s", rollout_id, error)
            return False
        return True

    def _stored_cursor(self) -> str | None:
        try:
            value = forms.loads(self._place_file.read_bytes().decode())
        except FileNotFoundError:
            return None
        except ValueError:
            _log.warning("%s is damaged; the mirror reads the log from the beginning again", self._place_file)
            return None
        cursor = cast("dict[str, Any]", value).get("cursor") if isinstance(value, dict) else None
        return cursor if isinstance(cursor, str) else None

    async def _store_cursor(self, cursor: str) -> bool:
        text = forms.dumps({"cursor": cursor}, "2+end")
        try:
            await asyncio.to_thread(write_file, self._place_file, text.encode())
        except OSError as error:
            _log.warning("the mirror could not store its cursor, and will try again: %s", error)
            return False
        return True
