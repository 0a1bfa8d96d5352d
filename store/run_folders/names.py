"""Names of the files of a run folder, and the descriptions that follow from the names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Final, Literal
from urllib.parse import quote, unquote

from store.errors import Invalid

META, EVENTS, EXTENSION, SIDECAR = OWN = "run_meta", "run_events", "run_extension", "run_files"
DIGEST, LATEST = "daily_digest.md", "latest.json"
COMPLETE_REPORT: Final = "complete_report.md"
"""The name of the complete report of a scope. A folder contains only the newest version, so the name has no time."""
DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")

FileKind = Literal["checkpoint", "artifact"]

MEDIA_TYPES: Final = {
    ".json": "application/json",
    ".md": "text/markdown",
    ".txt": "text/plain",
    ".jsonl": "application/jsonl",
    ".bin": "application/octet-stream",
}
"""Media types by file name extension."""

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_STAMPED: Final = re.compile(r"(\d{8}T\d{6}(?:\d{3})?Z)_(.+)", re.DOTALL)
_MARKET_DIRECTORY, _MARKET = "market", "MARKET"
_PORTFOLIO: Final = "portfolio"
_OF_PORTFOLIO: Final = re.compile(r"(.+)_(pm_decision|execution_result|risk_metrics)", re.DOTALL)
_CHECKPOINT: Final = "_checkpoint"
_AFTER: Final = {"analysts_checkpoint": "analysts", "trader_checkpoint": "debate_and_trader"}
_WHOLE_RUN: Final = "run"
_WITHOUT_END: Final = {".json", ".md", ".txt", ".bin"}


@dataclass(frozen=True, slots=True)
class FileDescription:
    """The description of a file, as derived from its path."""

    kind: FileKind
    scope: str
    name: str
    media_type: str | None
    phase: str | None
    """The phase at whose end the checkpoint was saved; None for an artifact, or if the phase is unknown."""


def run_file(stem: str, suffix: str | None) -> str:
    """Return the file name of a stem in `OWN`: the metadata, events, extension or sidecar of a run.

    Args:
        stem: the stem of the file name.
        suffix: None for the newest run of a folder, else the id of the run.
    """
    end = "jsonl" if stem in {EVENTS, EXTENSION} else "json"
    return f"{stem}.{end}" if suffix is None else f"{stem}.{suffix}.{end}"


def is_id(text: str) -> bool:
    """Return whether a text can be a part of a path."""
    return _ID.fullmatch(text) is not None and ".." not in text


def checked_id(value: object, field: str) -> str:
    """Check an id that will be a part of a path, and return it unchanged.

    Raises:
        Invalid: the id is not text, or has a form that `is_id` rejects.
    """
    if not isinstance(value, str) or not is_id(value):
        raise Invalid(
            field,
            f"{value!r} cannot name a folder; use 1 to 64 letters, digits and the characters _ . - (start with a"
            " letter, a digit or _, and do not write two dots in a row)",
        )
    return value


def stamp(at: float) -> str:
    """Return a time as the prefix of a file name: UTC with milliseconds, in a format that sorts by time."""
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03d}Z"


def order(path: str) -> tuple[str, str]:
    """Return the sort key of a file. Sorted by this key, the newest version of a name comes last."""
    stamped = _STAMPED.fullmatch(PurePosixPath(path).name)
    return (stamped[1].removesuffix("Z").ljust(18, "0") if stamped else "", path)


def description_of(path: str) -> FileDescription:
    """Return the description of a file from its path relative to the run folder."""
    *directories, file = path.split("/")
    end = PurePosixPath(file).suffix
    stem = file.removesuffix(end) if end in _WITHOUT_END else file
    stamped = _STAMPED.fullmatch(stem)
    stem = stamped[2] if stamped else stem
    kind: FileKind = "checkpoint" if end == ".json" and stem.endswith(_CHECKPOINT) else "artifact"
    scope = _scope(directories[0]) if directories else _WHOLE_RUN
    of_portfolio = _OF_PORTFOLIO.fullmatch(stem) if scope == _PORTFOLIO else None
    if of_portfolio:
        scope, stem = unquote(of_portfolio[1]), of_portfolio[2]
    inner = [part for part in directories[1:] if part != "report"]
    name = "/".join(unquote(part) for part in (*inner, stem))
    return FileDescription(kind, scope, name, MEDIA_TYPES.get(end), _AFTER.get(name) if kind == "checkpoint" else None)


def path_for(scope: str, name: str, prefix: str, end: str) -> str:
    """Return the path of a run's checkpoint or artifact relative to its folder.

    The path contains the prefix, unless the file is `COMPLETE_REPORT`.

    Raises:
        Invalid: the scope cannot name a folder, or the scope or the name is too long.
    """
    file = _quoted(name)
    if name + end == COMPLETE_REPORT:
        return f"{_directory(scope)}/report/{COMPLETE_REPORT}"
    if _OF_PORTFOLIO.fullmatch(f"x_{name}"):
        _directory(scope)
        return f"{_PORTFOLIO}/report/{prefix}_{_quoted(scope)}_{file}{end}"
    return f"{_directory(scope)}/report/{prefix}_{file}{end}"


def _scope(directory: str) -> str:
    return _MARKET if directory == _MARKET_DIRECTORY else unquote(directory)


def _directory(scope: str) -> str:
    if not scope or scope.startswith(".") or ".." in scope or any(character in scope for character in "/\\\0"):
        raise Invalid(
            "scope", f"{scope!r} cannot name a folder; use a scope without /, \\, U+0000 and `..`, and no dot in front"
        )
    if scope == _MARKET:
        return _MARKET_DIRECTORY
    # The scope `market` is quoted, because the directory `market` belongs to the scope `MARKET`.
    return "%" + f"{ord(scope[0]):02X}" + scope[1:] if scope == _MARKET_DIRECTORY else _quoted(scope)


def _quoted(text: str) -> str:
    quoted = quote(text, safe=" ^=:+@,()")
    quoted = quoted if not quoted.startswith(".") else "%2E" + quoted[1:]
    if len(quoted) > 180:
        raise Invalid(
            "name",
            f"{text[:60]!r}… is too long for the name of a file; use at most 180 characters (a special character"
            " counts as three or more)",
        )
    return quoted
