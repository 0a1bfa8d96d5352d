"""A mirror: folders that follow the log of a store."""

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
"""Where the mirror keeps up to where of the log its folders are current."""

_LONGEST_WAIT: Final = 30.0
_log = logging.getLogger("store.folders.mirroring")


class Mirror:
    """Keeps the folders of a store's runs current below a directory.

    What it could not write is told as a warning and tried again; the place in the log up to which the folders are
    current is kept beside them, so that a mirror which was stopped or killed catches up.
    """

    def __init__(
        self, store: Store, root: str | Path, *, on_written: Callable[[str, Path], None] | None = None
    ) -> None:
        """Make a mirror.

        Args:
            store: whose runs.
            root: the reports directory; made where there is none.
            on_written: called with a rollout's id and its folder after each writing.
        """
        self._store = store
        self._root = Path(root)
        self._on_written = on_written
        self._place_file = self._root / PLACE_FILE

    async def follow(self) -> None:
        """Keep the folders current until cancelled."""
        wait = 0.0
        while True:
            if await self.catch_up():
                wait = 0.0
                await self._something_new()
            else:
                wait = min(max(1.0, wait * 2), _LONGEST_WAIT)
                await asyncio.sleep(wait)

    async def catch_up(self) -> bool:
        """Write what has changed since the last time, and return whether everything could be written."""
        try:
            cursor, changed = await self._changed(self._place())
        except (StoreError, OSError) as error:
            _log.warning("the mirror cannot read the log, and will try again: %s", error)
            return False
        failed = {rollout_id for rollout_id in sorted(changed) if not await self._write(rollout_id)}
        if failed:
            return False
        return cursor is None or await self._keep(cursor)

    async def _changed(self, after: str | None) -> tuple[str | None, set[str]]:
        """Return the end of the log, and the rollouts of which something happened since a place in it."""
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
            _log.warning("the mirror starts anew: %s", error)
            return await self._changed(None)
        return cursor, changed

    async def _something_new(self) -> None:
        try:
            async with aclosing(cast("Any", self._store.log.tail(self._place(), follow=True))) as events:
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
            # Trying again would not help, and the others wait.
            _log.warning("the mirror leaves run %s out: %s", rollout_id, error)
        except (StoreError, OSError) as error:
            _log.warning("the mirror could not write run %s, and will try again: %s", rollout_id, error)
            return False
        return True

    # -- its place -----------------------------------------------------------------------------------------------------

    def _place(self) -> str | None:
        try:
            told = forms.loads(self._place_file.read_bytes().decode())
        except FileNotFoundError:
            return None
        except ValueError:
            _log.warning("%s is damaged; the mirror starts anew", self._place_file)
            return None
        cursor = cast("dict[str, Any]", told).get("cursor") if isinstance(told, dict) else None
        return cursor if isinstance(cursor, str) else None

    async def _keep(self, cursor: str) -> bool:
        text = forms.dumps({"cursor": cursor}, "2+end")
        try:
            await asyncio.to_thread(write_file, self._place_file, text.encode())
        except OSError as error:
            _log.warning("the mirror could not keep its place: %s", error)
            return False
        return True
