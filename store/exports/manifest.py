"""Manifest of an export, the file `manifest.json` in its directory: the command, the position and the finished files.

A part of the export is finished when the manifest lists its files. The files get their final names and are on disk
before they are listed. So every listed file is complete, and a call that was stopped at any time can be continued after
the last finished part.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import Field, ValidationError

from store.errors import AlreadyExists, Conflict, Incompatible
from store.exports.schema import SCHEMA_VERSION
from store.models.enums import Frozen

NAME: Final = "manifest.json"
CARD_NAME: Final = "README.md"
"""The dataset card."""
VIEWS_NAME: Final = "views.sql"
"""The statements that create the tables and views in DuckDB."""
UNFINISHED: Final = ".unfinished"
"""The suffix of files that are being written."""
_PART: Final = re.compile(r"-\d{5,}$")
"""The end of the names of files and folders of a part, without suffix."""
_SAME_COMMAND: Final = ("format", "store_id", "command")


class FileEntry(Frozen):
    """A finished file."""

    path: str
    """The path, relative to the directory of the export."""
    table: str
    split: str
    rows: int
    size_bytes: int
    """The size of the file, with the documents that the file lists if it is an index."""
    sha256: str


class Manifest(Frozen):
    """The content of the manifest."""

    schema_version: int
    """The version of the tables."""
    format: str
    store_id: str
    position: int
    """The position of the log at which the whole export was read."""
    command: dict[str, Any]
    """The arguments that determine the content of the files."""
    is_complete: bool = False
    rollouts: int = 0
    """The number of exported rollouts."""
    listed: int = 0
    """The number of listed rollouts that were examined for the export. A continued export skips this many."""
    parts: int = 0
    files: list[FileEntry] = Field(default_factory=list[FileEntry])

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each table that has files."""
        rows: dict[str, int] = {}
        for file in self.files:
            rows[file.table] = rows.get(file.table, 0) + file.rows
        return rows


def read(directory: Path) -> Manifest | None:
    """Return the manifest in a directory; None if there is no manifest.

    Raises:
        Incompatible: the manifest has another schema version, or the file is not the manifest of an export.
    """
    try:
        text = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        fields = orjson.loads(text)
        version = fields["schema_version"]
        if version == SCHEMA_VERSION:
            return Manifest.model_validate(fields)
    except (orjson.JSONDecodeError, ValidationError, KeyError, TypeError):
        raise Incompatible(
            f"{directory / NAME} is not the manifest of an export", "export to another directory"
        ) from None
    raise Incompatible(
        f"{directory} contains an export with schema version {version}, and this program writes {SCHEMA_VERSION}",
        "export to another directory, or continue with the version of Rollbook that began it",
    )


def write(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest. It is on disk when this function returns."""
    text = orjson.dumps(manifest.model_dump(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    replace_file(directory / NAME, text)


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file at once: no reader sees a part of it. It is on disk when this function returns."""
    unfinished = path.with_name(path.name + UNFINISHED)
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Write the entries of a directory to disk, so that new and changed file names survive a crash."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(directory: Path) -> Generator[None]:
    """Create the directory unless it exists, and lock it for this process.

    Raises:
        Conflict: another process has locked the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another process is exporting to {directory}", "wait until it has ended") from None
        yield
    finally:
        os.close(handle)


def begin(directory: Path, planned: Manifest, *, is_position_given: bool, overwrite: bool) -> Manifest:
    """Return the manifest from which an export to a directory continues. A new export begins with the planned manifest.

    Args:
        directory: the directory, which the caller has locked.
        planned: the manifest of a new export.
        is_position_given: whether the caller gave a position, so that an earlier export must have the same one.
        overwrite: whether to delete the files of an earlier export first.

    Raises:
        AlreadyExists: the directory contains a finished export, or files that no export wrote.
        Conflict: the directory contains an export of another command.
        Incompatible: the directory contains an export with another version of the tables.
    """
    earlier = read(directory)
    if earlier is None:
        if strangers := [path.name for path in sorted(directory.iterdir()) if not path.name.endswith(UNFINISHED)]:
            raise AlreadyExists(
                "file", str(directory / strangers[0]), "export to a new or empty directory, so that nothing is mixed"
            )
    elif overwrite:
        _delete(directory, earlier)
    elif difference := _difference(earlier, planned, is_position_given=is_position_given):
        raise Conflict(
            f"{directory} contains an export of another command ({difference})",
            "repeat that command, export to another directory, or overwrite it with --overwrite",
        )
    elif earlier.is_complete:
        raise AlreadyExists(
            "finished export", str(directory), "export to another directory, or overwrite it with --overwrite"
        )
    else:
        _delete_unlisted(directory, earlier)
        return earlier
    write(directory, planned)
    return planned


def _difference(earlier: Manifest, planned: Manifest, *, is_position_given: bool) -> str | None:
    """Return the first argument in which two exports differ, as text; None if both are of the same command."""
    for name in _SAME_COMMAND[:2]:
        if getattr(earlier, name) != getattr(planned, name):
            return f"{name} {getattr(earlier, name)}, not {getattr(planned, name)}"
    for name in sorted({*earlier.command, *planned.command}):
        if earlier.command.get(name) != planned.command.get(name):
            return f"{name} {earlier.command.get(name)}, not {planned.command.get(name)}"
    if is_position_given and earlier.position != planned.position:
        return f"position {earlier.position}, not {planned.position}"
    return None


def _delete(directory: Path, manifest: Manifest) -> None:
    """Delete the files of an export and nothing else. The manifest is deleted last.

    Raises:
        Incompatible: the manifest lists a file outside of the directory. Nothing is deleted.
    """
    names = [*(file.path for file in manifest.files), CARD_NAME, VIEWS_NAME]
    tables = sorted({file.table for file in manifest.files})
    top = directory.resolve()
    if strangers := [name for name in [*names, *tables] if not (directory / name).resolve().is_relative_to(top)]:
        raise Incompatible(
            f"{directory / NAME} lists {strangers[0]!r}, which is not in the directory", "delete it by hand"
        )
    _delete_unlisted(directory, manifest)
    for name in names:
        _delete_file(directory / name)
    for name in tables:
        folder = directory / name
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    (directory / NAME).unlink(missing_ok=True)


def _delete_unlisted(directory: Path, manifest: Manifest) -> None:
    """Delete the files of an unfinished part. Files of other programs stay."""
    listed = {file.path for file in manifest.files}
    prefix = f"-{manifest.parts:05d}."
    for path in [*directory.glob(f"*{UNFINISHED}"), *directory.glob(f"*/*{UNFINISHED}")]:
        _delete_file(path)
    for path in [*directory.glob(f"*{prefix}*"), *directory.glob(f"*/*{prefix}*")]:
        if str(path.relative_to(directory)) not in listed:
            _delete_file(path)


def folder_of(file: Path) -> Path:
    """Return the folder with the documents that an index lists. `file` is the path of the index."""
    return file.with_name(Path(file.name.removesuffix(UNFINISHED)).stem)


def _delete_file(path: Path) -> None:
    """Delete a file of an export, with the folder of its documents if it is an index; or delete such a folder."""
    folder = folder_of(path)
    if _PART.search(folder.name):
        for beside in (folder, folder.with_name(folder.name + UNFINISHED)):
            if beside.is_dir():
                shutil.rmtree(beside)
    path.unlink(missing_ok=True)
