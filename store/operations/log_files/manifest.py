"""Manifest of a log in files: the identity of the store, the end of the log, and the finished files with their hashes.

A file gets its name and is on disk before the manifest lists it. From then on, the file is finished.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import orjson
from pydantic import Field, ValidationError

from store.db.schema.history import LOG_FORMAT
from store.errors import AlreadyExists, Conflict, Incompatible, NotFound
from store.exports.manifest import NAME, UNFINISHED, replace_file
from store.models.enums import Frozen
from store.operations.log_source import EndOfLog, StoreIdentity

FORMAT: Final = "rollbook-log"
VERSION: Final = 1
TABLES: Final = "tables.jsonl"
"""The file with the tables beside the log."""


class LogFile(Frozen):
    """A finished file."""

    path: str = Field(pattern=r"^(tables|log-\d{5,})\.jsonl$")
    lines: int
    size_bytes: int
    sha256: str
    commit_id: int
    """The last commit in this file and the files before it; 0 for the file with the tables beside the log."""


class LogManifest(Frozen):
    """The content of the manifest."""

    format: Literal["rollbook-log"] = FORMAT
    version: int = VERSION
    store_id: str
    created_at: int
    """The time at which the store was created, in µs since the epoch."""
    log_format: int
    """The version of the format of the log in the store."""
    commit_id: int
    """The last commit; 0 for an empty log."""
    position: int
    """The position of the last event."""
    chain_head: str
    """The hash of the last commit, in hex."""
    events: int
    body_bytes: int
    """The number of uncompressed bytes of all bodies that were ever stored."""
    is_complete: bool = False
    """Whether the export is finished."""
    files: list[LogFile] = Field(default_factory=list[LogFile])

    @property
    def identity(self) -> StoreIdentity:
        """The identity of the store."""
        return StoreIdentity(self.store_id, self.created_at, self.log_format)

    @property
    def end(self) -> EndOfLog:
        """The end of the log."""
        return EndOfLog(self.commit_id, self.position, bytes.fromhex(self.chain_head), self.events, self.body_bytes)

    @classmethod
    def of(cls, identity: StoreIdentity, end: EndOfLog) -> LogManifest:
        """Return the manifest for an export that has no finished file yet."""
        fields = {**identity._asdict(), **end._asdict()}
        fields["chain_head"] = fields.pop("chain_hash").hex()
        return cls(**fields)


def read(directory: Path) -> LogManifest | None:
    """Return the manifest in a directory; None if there is none.

    Raises:
        Incompatible: the manifest is not that of a log, or a newer version of this program wrote it.
    """
    path = directory / NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fields: dict[str, Any] = orjson.loads(text)
        is_log, version, log_format = fields["format"] == FORMAT, fields["version"], fields["log_format"]
        if is_log and version <= VERSION and log_format <= LOG_FORMAT:
            return LogManifest.model_validate(fields)
    except (orjson.JSONDecodeError, ValidationError, LookupError, TypeError):
        is_log, version, log_format = False, None, None
    if not is_log:
        raise Incompatible(f"{path} is not the manifest of a log", "`rollbook export log` writes one")
    raise Incompatible(
        f"{directory} has version {version} and log format {log_format}; this program reads versions up to {VERSION}"
        f" and log formats up to {LOG_FORMAT}",
        "upgrade Rollbook: pip install --upgrade rollbook",
    )


def read_complete(directory: Path) -> LogManifest:
    """Return the manifest of a complete log.

    Raises:
        NotFound: there is no manifest.
        Incompatible: the manifest is not that of a complete log, or a newer version of this program wrote it.
    """
    manifest = read(directory)
    if manifest is None:
        raise NotFound("log", str(directory), f"{directory} contains no log; `rollbook export log` writes one")
    if not manifest.is_complete:
        raise Incompatible(f"the export of the log to {directory} is not finished", "repeat the command that began it")
    return manifest


def write(directory: Path, manifest: LogManifest) -> None:
    """Replace the manifest. It is on disk when this function returns."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    replace_file(directory / NAME, orjson.dumps(manifest.model_dump(), option=options))


def earlier(directory: Path, identity: StoreIdentity, *, overwrite: bool) -> LogManifest | None:
    """Check a directory. Return the manifest of the export to continue, or None for a new export.

    Args:
        directory: the directory, which is locked.
        identity: the identity of the store.
        overwrite: whether to delete the files of an earlier export, and to begin a new one.

    Raises:
        AlreadyExists: the directory contains a finished export, or files that no export wrote.
        Conflict: the directory contains the log of another store.
        Incompatible: the directory contains a manifest of another format or of a newer version.
    """
    manifest = read(directory)
    if manifest is None:
        names = sorted(path.name for path in directory.iterdir() if not path.name.endswith(UNFINISHED))
        # A process that was killed before it wrote the first manifest may have left the file `TABLES`.
        if others := [name for name in names if name != TABLES]:
            raise AlreadyExists(
                "file", str(directory / others[0]), "export to a new or empty directory, so that nothing is mixed"
            )
        return None
    if overwrite:
        delete(directory, manifest)
        return None
    if manifest.identity != identity:
        raise Conflict(
            f"{directory} contains the log of store {manifest.store_id}, not of {identity.store_id}",
            "export to another directory, or overwrite it with --overwrite",
        )
    if manifest.is_complete:
        raise AlreadyExists(
            "finished export", str(directory), "export to another directory, or overwrite it with --overwrite"
        )
    return manifest


def delete(directory: Path, manifest: LogManifest) -> None:
    """Delete the files of an export, then its manifest. Other files stay."""
    # A call that was killed may have left a file that has its final name and is not listed yet.
    unlisted = f"log-{len(manifest.files):05d}.jsonl"
    for name in [*(file.path for file in manifest.files), unlisted]:
        (directory / name).unlink(missing_ok=True)
    (directory / NAME).unlink(missing_ok=True)
