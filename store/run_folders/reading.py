"""Search for run folders, and reading of the files of run folders in all layouts.

The own files of a run are its metadata, its events and its sidecar. A sidecar describes the other files of the run. In
the layout `flow`, the runs of a flow share a folder. The layouts are `daily/<date>/<flow>` (flow),
`daily/<date>/runs/<run>` (legacy) and `daily/<date>` (flat).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import ValidationError

from store.errors import Invalid, StoreError
from store.run_folders import forms, names
from store.run_folders.records import Sidecar, SidecarFile, Warned
from store.validation.json_limits import MAX_CALL_BYTES

Layout = Literal["flow", "legacy", "flat"]

_META_FILE: Final = re.compile(rf"{names.META}(?:\.(.+))?\.json")
_OWN_FILE: Final = re.compile(rf"(?:{'|'.join(names.OWN)})(?:\..+)?\.jsonl?")
_DEPTH: Final = 4
_ORDER: Final[dict[Layout, int]] = {"flow": 0, "legacy": 1, "flat": 2}
_LARGEST_FILE: Final = MAX_CALL_BYTES // 4
"""The maximum size of a file in bytes.

It is a quarter of the maximum size of a call, because one call may contain a file both as text and as parsed values.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a run: its folder, and the suffix of its own files there."""

    folder: Path
    layout: Layout
    suffix: str | None = None
    """The suffix in the names of the run's own files; None for the newest run of the folder."""

    def own(self, stem: str) -> Path:
        """Return the path of one of the run's own files, given by its name in `names.OWN`."""
        return self.folder / names.run_file(stem, self.suffix)


@dataclass(slots=True)
class Folder:
    """A run as read from its folder."""

    place: Place
    run_id: str
    flow_id: str | None
    date: str | None
    meta: dict[str, Any]
    meta_text: str
    events: bytes | None
    extension: bytes | None
    files: dict[str, bytes]
    """The contents of the files by path relative to the folder. The oldest version of an artifact comes first."""
    described: dict[str, SidecarFile]
    """The descriptions of files in the sidecar of the run, by path."""
    has_sidecar: bool
    warnings: list[Warned] = field(default_factory=list[Warned])


def find(root: Path) -> list[Place]:
    """Return the runs below a directory, or in a run folder, sorted by layout and path.

    The newest run of a folder comes after the other runs of the folder.

    Raises:
        Invalid: the directory does not exist.
    """
    if not root.is_dir():
        raise Invalid(
            "DIR", f"{root} is no directory; give the directory that contains the run folders, or one run folder"
        )
    places = [place for folder in _below(root, 0) for place in places_of(folder)]
    return sorted(places, key=lambda place: (_ORDER[place.layout], str(place.folder), place.suffix is None))


def _below(directory: Path, depth: int) -> Iterator[Path]:
    yield directory
    if depth < _DEPTH:
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _below(Path(entry.path), depth + 1)


def places_of(folder: Path) -> list[Place]:
    """Return the runs of one folder, the newest run last; an empty list if the folder is not a run folder."""
    suffixes = [match[1] for entry in folder.iterdir() if (match := _META_FILE.fullmatch(entry.name))]
    layout: Layout = "flow"
    if names.DATE.fullmatch(folder.name):
        layout = "flat"
    elif folder.parent.name == "runs":
        layout = "legacy"
    return [
        Place(folder, layout, suffix) for suffix in sorted(suffixes, key=lambda suffix: (suffix is None, suffix or ""))
    ]


def is_run_folder(folder: Path) -> bool:
    """Return whether a directory exists and contains the metadata of a run."""
    return folder.is_dir() and bool(places_of(folder))


def read(place: Place) -> Folder:
    """Return a run with all its files.

    Raises:
        Invalid: the `run_meta.json` of the run is damaged, or contains an id, a flow or a date that cannot be part of a
            path.
    """
    path = place.own(names.META)
    try:
        text = read_file(path).decode()
        meta = forms.loads(text)
    except (ValueError, OSError) as error:
        raise Invalid(path.name, f"{path} cannot be read ({error}); repair it or remove the folder") from None
    if not isinstance(meta, dict):
        raise Invalid(path.name, f"{path} holds no JSON object; repair it or remove the folder")
    fields = cast("dict[str, Any]", meta)
    run_id, flow_id, date = identity(place, fields)
    folder = Folder(
        place=place,
        run_id=run_id,
        flow_id=flow_id,
        date=date,
        meta=fields,
        meta_text=text,
        events=_own_lines(place, names.EVENTS),
        extension=_own_lines(place, names.EXTENSION),
        files={},
        described={},
        has_sidecar=False,
    )
    _add_files(folder)
    return folder


def read_file(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        FileNotFoundError: the file does not exist.
        Invalid: the path is not a regular file, but for example a named pipe, from which a read could block for ever.
    """
    if path.exists() and not path.is_file():
        raise Invalid(path.name, f"{path} is not a regular file; replace it or remove the folder")
    return path.read_bytes()


def identity(place: Place, meta: dict[str, Any]) -> tuple[str, str | None, str | None]:
    """Return the id, the flow and the date of a run.

    Raises:
        Invalid: the id, the flow or the date cannot be part of a path.
    """
    path = place.own(names.META)
    run_id = names.checked_id(meta.get("id"), f"{path.name}: id")
    return run_id, _flow(meta, place), _id(meta, "date", path) or _day(place.folder)


def _flow(meta: dict[str, Any], place: Place) -> str | None:
    """Return the flow of a run: `flow_id`, else `short_rid`, else `params.flow_id` of its metadata.

    If the metadata has none of these, the flow of a run in the layout `flow` is the name of the folder. The flow of
    other runs is None then.
    """
    path, params = place.own(names.META), meta.get("params")
    flow = _id(meta, "flow_id", path) or _id(meta, "short_rid", path)
    if flow is None and isinstance(params, dict):
        flow = _id(cast("dict[str, Any]", params), "flow_id", path)
    if flow is None and place.layout == "flow" and names.is_id(place.folder.name):
        flow = place.folder.name
    return flow


def _day(folder: Path) -> str | None:
    """Return the date in the path of a folder."""
    return next(
        (directory.name for directory in (folder, *folder.parents[:2]) if names.DATE.fullmatch(directory.name)), None
    )


def _id(meta: dict[str, Any], name: str, path: Path) -> str | None:
    value = meta.get(name)
    return None if value is None or value == "" else names.checked_id(value, f"{path.name}: {name}")


def _own_lines(place: Place, stem: str) -> bytes | None:
    try:
        return read_file(place.own(stem))
    except FileNotFoundError:
        return None


def _add_files(folder: Folder) -> None:
    described, other_paths = _sidecars(folder.place)
    sidecar = described.get(folder.place.suffix)
    folder.has_sidecar = sidecar is not None
    folder.described = {} if sidecar is None else sidecar.files
    is_newest = folder.place.suffix is None
    paths = {
        path: entry
        for path, entry in _files(folder.place)
        if path in folder.described or (is_newest and path not in other_paths)
    }
    for path in sorted(paths, key=names.order):
        if (problem := _problem(paths[path])) is not None:
            folder.warnings.append(Warned(file=path, problem=problem))
            continue
        folder.files[path] = paths[path].read_bytes()


def _problem(path: Path) -> str | None:
    if path.is_symlink():
        return "is a link; the target of the link is not imported"
    if not path.is_file():
        return "is not a regular file; it is not imported"
    size = path.stat().st_size
    return f"has {size} bytes; at most {_LARGEST_FILE} are imported" if size > _LARGEST_FILE else None


def _files(place: Place) -> Iterator[tuple[str, Path]]:
    """Yield the relative path and the location of each file, except the files of the run's events and metadata."""
    for entry in sorted(place.folder.iterdir()):
        if entry.name.startswith(".") or _OWN_FILE.fullmatch(entry.name):
            continue
        if entry.is_dir() and not entry.is_symlink():
            # In the flat layout, a run's folder contains the folders of other runs next to the folders of its own
            # scopes. The folders of other runs are skipped.
            if place.layout != "flat" or (entry.name != "runs" and not places_of(entry)):
                yield from _within(entry, entry.name)
        elif place.layout != "flat" or entry.name not in {names.DIGEST, names.LATEST}:
            yield entry.name, entry


def _within(directory: Path, path: str) -> Iterator[tuple[str, Path]]:
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _within(entry, f"{path}/{entry.name}")
        else:
            yield f"{path}/{entry.name}", entry


def _sidecars(place: Place) -> tuple[dict[str | None, Sidecar], set[str]]:
    """Return the sidecars of a folder by suffix, and the paths of files that belong to other runs than the newest."""
    sidecars: dict[str | None, Sidecar] = {}
    for run_place in places_of(place.folder):
        sidecar = read_sidecar(run_place)
        if sidecar is not None:
            sidecars[run_place.suffix] = sidecar
    other_paths = {path for suffix, sidecar in sidecars.items() if suffix is not None for path in sidecar.files}
    return sidecars, other_paths


def read_sidecar(place: Place) -> Sidecar | None:
    """Return the sidecar of a run; None if it is missing or damaged."""
    try:
        return Sidecar.model_validate_json(read_file(place.own(names.SIDECAR)))
    except (FileNotFoundError, ValidationError):
        return None


def files_of_newest(folder: Path) -> list[str]:
    """Return the paths of the files of the newest run of a folder, except the run's own files (`names.OWN`)."""
    place = Place(folder, "flow")
    _, other_paths = _sidecars(place)
    return [path for path, _ in _files(place) if path not in other_paths]


def meta_of(place: Place) -> dict[str, Any] | None:
    """Return the metadata of a run without reading its other files; None if the metadata cannot be read."""
    try:
        meta = forms.loads(read_file(place.own(names.META)).decode())
    except (ValueError, OSError, StoreError):
        return None
    return cast("dict[str, Any]", meta) if isinstance(meta, dict) else None
