"""Atomic writing of run folders: readers see the complete old folder or the complete new folder.

The names of a run's own files (`names.OWN`) contain the id of the run as a suffix. The newest run of a folder has no
suffix.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from store.errors import Invalid
from store.run_folders import forms, names, reading
from store.run_folders.names import EVENTS, EXTENSION, META, OWN, SIDECAR, run_file
from store.run_folders.reading import Place
from store.run_folders.records import Sidecar, SidecarFile

_AT_WORKING_DIRECTORY: Final = -100
_EXCHANGE: Final = 2
_CANNOT_EXCHANGE: Final = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The contents of a run's folder."""

    run_id: str
    flow: str
    date: str
    meta: dict[str, Any]
    meta_text: str
    events: bytes | None
    files: dict[str, bytes]
    described: dict[str, SidecarFile]
    """The description of each file."""
    needs_sidecar: bool
    gone: set[str]
    """The paths of files that are no longer part of the run."""
    extension: bytes | None = None
    """The events of kinds that `run_events.jsonl` does not have; None if there are none."""


def write(root: Path, run: RunFiles) -> Path:
    """Write a run below the directory `root`, and return the folder of the run, `daily/<date>/<flow>`.

    A folder with the same contents stays unchanged.

    Raises:
        Invalid: the folder is outside of `root` because of a link, or another run's `run_meta.json` in the folder
            cannot be read.
    """
    day = root / "daily" / run.date
    target = day / run.flow
    day.mkdir(parents=True, exist_ok=True)
    if not target.resolve().is_relative_to(root.resolve()):
        raise Invalid("DIR", f"{target} leads out of {root} through a link; remove the link")
    with _locked(day):
        _recover(day, run.flow)
        for place in reading.places_of(target) if target.exists() else ():
            if reading.meta_of(place) is None:
                raise Invalid("DIR", f"{place.own(META)} cannot be read; repair or remove it")
        new = day / f".{run.flow}.new-{secrets.token_hex(4)}"
        # The files of the copy are hard links, so each file must be replaced, not changed.
        if target.exists():
            shutil.copytree(target, new, symlinks=True, copy_function=_link)
        else:
            new.mkdir()
        if _bring_up_to_date(new, run):
            for directory, _, __ in os.walk(new):
                _sync(Path(directory))
            _put_in_place(new, target, day / f".{run.flow}.old")
        else:
            shutil.rmtree(new)
        _update_day(day, run)
    return target


def _link(source: str, copy: str) -> str:
    try:
        os.link(source, copy, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, copy)
    return copy


def _bring_up_to_date(folder: Path, run: RunFiles) -> bool:
    """Write the files of a run into a folder, and return whether a file changed."""
    suffix, is_changed = _make_room(folder, run)
    others = _files_of_others(folder, suffix)
    files = {_beside(path, others, run.run_id): data for path, data in run.files.items()}
    described = {_beside(path, others, run.run_id): file for path, file in run.described.items()}
    contents: dict[str, bytes] = {**files, run_file(META, suffix): run.meta_text.encode()}
    unwanted = run.gone - others
    if run.events is not None:
        contents[run_file(EVENTS, suffix)] = run.events
    if run.extension is not None:
        contents[run_file(EXTENSION, suffix)] = run.extension
    else:
        unwanted.add(run_file(EXTENSION, suffix))
    if run.needs_sidecar or (suffix is not None and described) or files.keys() != run.files.keys():
        contents[run_file(SIDECAR, suffix)] = _sidecar(run.run_id, described)
    else:
        unwanted.add(run_file(SIDECAR, suffix))
    for path in unwanted - set(contents):
        if (folder / path).is_file():
            (folder / path).unlink()
            is_changed = True
    for path, data in contents.items():
        is_changed |= write_file(folder / path, data)
    return is_changed


def _files_of_others(folder: Path, suffix: str | None) -> set[str]:
    """Return the files of a folder that belong to other runs than the run with the given suffix."""
    others = {place: reading.read_sidecar(place) for place in reading.places_of(folder) if place.suffix != suffix}
    files = {path for sidecar in others.values() if sidecar is not None for path in sidecar.files}
    return files | (set(reading.files_of_newest(folder)) if suffix is not None else set())


def _beside(path: str, others: set[str], run_id: str) -> str:
    """Return the path for a file. If another run of the folder has a file with this path, the run's id is added."""
    if path not in others:
        return path
    there = PurePosixPath(path)
    return str(there.with_name(f"{there.stem}.{run_id}{there.suffix}"))


def _make_room(folder: Path, run: RunFiles) -> tuple[str | None, bool]:
    """Return the suffix of the run's own files, and whether files of another run were renamed.

    The newest run of a folder has no suffix. If this run is newer than the run without a suffix, the files of that run
    receive its id as their suffix.
    """
    metas = {place: reading.meta_of(place) or {} for place in reading.places_of(folder)}
    plain = next((place for place in metas if place.suffix is None), None)
    if plain is None or metas[plain].get("id") == run.run_id:
        return None, False
    if moment_of(metas[plain].get("created_at")) > moment_of(run.meta.get("created_at")):
        return run.run_id, False
    _demote(plain, names.checked_id(metas[plain].get("id"), "run_meta.json: id"))
    for stem in OWN:
        Place(folder, "flow", run.run_id).own(stem).unlink(missing_ok=True)
    return None, True


def _demote(plain: Place, run_id: str) -> None:
    """Add the run's id to the names of its own files, and write a sidecar that lists its other files."""
    files = reading.files_of_newest(plain.folder)
    has_sidecar = plain.own(SIDECAR).exists()
    for stem in OWN:
        if plain.own(stem).exists():
            plain.own(stem).rename(plain.folder / run_file(stem, run_id))
    if files and not has_sidecar:
        described = {path: SidecarFile.of_path(path) for path in files}
        write_file(plain.folder / run_file(SIDECAR, run_id), _sidecar(run_id, described))


def _sidecar(run_id: str, described: dict[str, SidecarFile]) -> bytes:
    sidecar = Sidecar(run_id=run_id, files=dict(sorted(described.items())))
    return forms.dumps(sidecar.model_dump(mode="json"), "2+end").encode()


def moment_of(value: Any) -> float:
    """Return a time from a file of a folder in seconds since the epoch; 0 if the value is not a time."""
    if isinstance(value, int | float):
        return float(value)
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return 0.0
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def _update_day(day: Path, run: RunFiles) -> None:
    """Update the pointer to the newest run of the day, and add a line to the day's digest for a run that has ended."""
    at = moment_of(run.meta.get("completed_at")) or moment_of(run.meta.get("created_at"))
    latest = day / names.LATEST
    updated_at = datetime.fromtimestamp(at, UTC).isoformat()
    if at and at >= moment_of((_read_json(latest) or {}).get("updated_at")):
        pointer = {"flow_id": run.flow, "run_id": run.run_id, "updated_at": updated_at}
        write_file(latest, forms.dumps(pointer, "2+end").encode())
    if run.meta.get("status") not in {"queued", "running"}:
        _add_to_digest(day / names.DIGEST, run)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = forms.loads(path.read_bytes().decode())
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _add_to_digest(digest: Path, run: RunFiles) -> None:
    count = (run.events or b"").count(b"\n")
    rerun = f", re-run {run.meta['rerun_seq']}" if run.meta.get("rerun_seq") else ""
    line = f"- {run.flow} {run.run_id} {run.meta.get('type')}: {run.meta.get('status')}{rerun}, {count} events\n"
    existing = digest.read_bytes() if digest.exists() else b""
    run_lines = [
        line for line in existing.splitlines(keepends=True) if line.startswith(f"- {run.flow} {run.run_id} ".encode())
    ]
    if run_lines and run_lines[-1] == line.encode():
        return
    start = "\n" if existing and not existing.endswith(b"\n") else "" if existing else f"# {run.date}\n\n"
    with digest.open("ab") as file:
        file.write(f"{start}{line}".encode())
        file.flush()
        os.fsync(file.fileno())


def write_file(path: Path, data: bytes) -> bool:
    """Write a file atomically and return whether its contents changed."""
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}"[-200:])
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return True


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(new: Path, target: Path, old: Path) -> None:
    if not target.exists():
        new.rename(target)
    elif _exchange(new, target):
        shutil.rmtree(new)
    else:
        # After a crash between the two renames, the next export restores the old folder.
        target.rename(old)
        new.rename(target)
        shutil.rmtree(old)
    _sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two directories atomically; return False if the system does not support this."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    status = function(_AT_WORKING_DIRECTORY, bytes(one), _AT_WORKING_DIRECTORY, bytes(other), _EXCHANGE)
    if status == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _recover(day: Path, flow: str) -> None:
    """Remove the temporary folders of an interrupted export. If only the old folder exists, restore its name."""
    old, target = day / f".{flow}.old", day / flow
    if old.exists():
        if target.exists():
            shutil.rmtree(old)
        else:
            old.rename(target)
    for leftover in day.glob(f".{flow}.new-*"):
        shutil.rmtree(leftover)


@contextmanager
def _locked(directory: Path) -> Generator[None]:
    """Lock the directory of a day, so that no other export writes there."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
