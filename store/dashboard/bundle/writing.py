"""Writing of a bundle: the pages of chosen rollouts are drawn as the dashboard draws them, and linked to each other."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from store.dashboard import rendering
from store.dashboard.bundle.static_html import StaticPage
from store.dashboard.page import File, PageContent, View
from store.dashboard.pages import rollout_list, rollout_tabs, rollout_transcript, waterfall
from store.dashboard.request import MOST_ROWS, PageRequest, Visitor
from store.errors import Conflict, Invalid, NotFound
from store.models import AttemptedRollout, Rollout
from store.models.enums import Frozen
from store.models.queries import RolloutQuery
from store.runtime.progress import OnProgress, OperationProgress, ignore
from store.sql.store import SQLStore

MOST_ROLLOUTS: Final = MOST_ROWS
"""The maximum number of rollouts in a bundle, which is the maximum of a list in the dashboard."""
FORMAT: Final = "rollbook-bundle"
VERSION: Final = 1
_MANIFEST: Final = "bundle.json"
_INDEX: Final = "index.html"
_ASSETS: Final = (*rendering.stylesheets(), "icon.svg", "bundle.js")
_MOST_PAGES: Final = 2_000
"""The maximum number of pages of one rollout. Links to further pages are left out."""
_PAGE: Final = re.compile(r"/ui/rollouts/(?P<rollout>[^/?#]+)(?:/(?P<kind>[^/?#]+)(?:/(?P<span>[^/?#]+))?)?")
_IMAGE: Final = re.compile(r"/ui/rollouts/(?P<rollout>[^/?#]+)/media/(?P<span>[^/?#]+)/(?P<key>[0-9a-f]+)")
_STATIC: Final = re.compile(r"/ui/static/[^/]+/(?P<name>[^/?#]+)")

_VIEWS: Final[Mapping[str, View]] = {
    "transcript": rollout_transcript.rollout,
    "waterfall": waterfall.waterfall,
    "spans": waterfall.spans,
    "events": rollout_tabs.events,
    "training": rollout_tabs.training,
    "span": waterfall.span,
}
_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "transcript": ("attempt", "offset"),
    "waterfall": ("attempt",),
    "spans": ("attempt", "after"),
    "events": ("after",),
    "training": ("attempt",),
    "span": ("attempt",),
}
"""For each view of a rollout in a bundle, the parameters that select a page of its own. Others are ignored."""
_NEW_STATES: Final = frozenset({"at", "full", "type", "adapter"})
"""Parameters that show something else than the pages of a bundle. Links with them are left out."""


class BundleReport(Frozen):
    """The result of `write_bundle`."""

    directory: str
    position: int
    """The position of the log at which the pages were drawn."""
    rollouts: int
    pages: int
    size_bytes: int
    seconds: float


async def write_bundle(
    store: SQLStore,
    directory: Path,
    *,
    query: RolloutQuery | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> BundleReport:
    """Write the pages of rollouts to a new folder, which a browser opens without a server.

    The folder has an index with the list of the rollouts, and for each rollout its transcript, spans, events and
    training view. Links lead to pages of the folder only. The same rollouts give the same bytes. The folder appears
    only when it is complete, so a call that was stopped can be repeated.

    Args:
        store: the store, whose present state is written.
        directory: the folder.
        query: which rollouts, at most 500; None for all.
        overwrite: whether to replace an earlier bundle.
        on_progress: called with the number of rollouts whose pages are written.

    Raises:
        Invalid: the query selects no rollouts or too many.
        Conflict: the directory exists and is not empty, or rollouts changed while their pages were drawn.
    """
    query = query or RolloutQuery()
    directory = _checked_directory(directory, overwrite=overwrite)
    page = await store.find_rollouts(query.model_copy(update={"limit": MOST_ROLLOUTS + 1}))
    ids = [rollout.rollout_id for rollout in page]
    attempts = {rollout.rollout_id: await _attempt_numbers(store, rollout) for rollout in page}
    if not ids:
        raise Invalid("query", "selects no rollouts; change the filters")
    if len(ids) > MOST_ROLLOUTS:
        raise Invalid(
            "query", f"selects {page.total:,} rollouts, and a bundle has at most {MOST_ROLLOUTS}; add filters"
        )
    position = (await store.log.position()).position
    partial_directory = directory.parent / f".{directory.name}.partial"
    await asyncio.to_thread(shutil.rmtree, partial_directory, ignore_errors=True)
    bundle = _Bundle(store, partial_directory, attempts, on_progress)
    await bundle.write()
    after = (await store.log.position()).position
    if after != position:
        later = await store.find_rollouts(RolloutQuery.of(rollout_id_in=ids, as_at=position))
        now = await store.find_rollouts(RolloutQuery.of(rollout_id_in=ids, as_at=after))
        if later.items != now.items:
            raise Conflict("rollouts changed while their pages were drawn", "choose rollouts that have ended")
    bundle.put(_MANIFEST, bundle.manifest(position))
    await asyncio.to_thread(_replace, partial_directory, directory)
    return BundleReport(
        directory=str(directory),
        position=position,
        rollouts=len(ids),
        pages=sum(name.endswith(".html") for name in bundle.files),
        size_bytes=bundle.size,
        seconds=time.monotonic() - bundle.began,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A page of a bundle."""

    rollout_id: str
    kind: str
    params: tuple[tuple[str, str], ...] = ()
    span_id: str | None = None


@dataclass
class _Bundle:
    store: SQLStore
    directory: Path
    attempts: Mapping[str, Mapping[str, str]]
    """For each rollout id, a mapping from the id and from the number of each attempt to its number. For the latest
    attempt, the value is an empty text, because pages show this attempt by default."""
    on_progress: OnProgress
    files: dict[str, str] = field(default_factory=dict[str, str])
    """The SHA-256 of each file by its path."""
    size: int = 0
    began: float = field(default_factory=time.monotonic)
    _paths: dict[_Place, str] = field(default_factory=dict[_Place, str])
    """The path of each page that was written or that will be written."""
    _waiting: deque[_Place] = field(default_factory=deque[_Place])
    _images: dict[str, _Place] = field(default_factory=dict[str, _Place])
    """The images of messages by their paths. The kind of their place is the key of the image."""
    _counts: dict[str, int] = field(default_factory=dict[str, int])
    """For each rollout id, the number of its pages, not counting its first page."""

    @property
    def rollout_ids(self) -> list[str]:
        """The ids of the rollouts of the bundle."""
        return list(self.attempts)

    async def write(self) -> None:
        """Write all pages and the files that they need."""
        for name in _ASSETS:
            static = rendering.static_file(name)
            assert static is not None  # the package has the file
            self.put(f"assets/{name}", static[0])
        for number, rollout_id in enumerate(self.rollout_ids, start=1):
            self._counts[rollout_id] = 0
            self._paths[_Place(rollout_id, "transcript")] = f"{number:03}/{_INDEX}"
        await self._write_index()
        for number, rollout_id in enumerate(self.rollout_ids, start=1):
            self._waiting.append(_Place(rollout_id, "transcript"))
            while self._waiting:
                await self._write_page(self._waiting.popleft())
            while self._images:
                await self._write_image(*self._images.popitem())
            self.on_progress(OperationProgress("exporting", number, len(self.rollout_ids), "rollouts"))

    async def _write_index(self) -> None:
        params = {"id": self.rollout_ids, "limit": [str(MOST_ROLLOUTS)]}
        await self._draw(_INDEX, rollout_list.rollouts, self._request("/ui/rollouts", {}, params))

    async def _write_page(self, place: _Place) -> None:
        ids = {"rollout_id": place.rollout_id}
        params = {name: [value] for name, value in place.params}
        if place.span_id is not None:
            ids["span_id"] = place.span_id
            params["all"] = ["1"]
        path = f"/ui/rollouts/{place.rollout_id}/{place.kind}"
        await self._draw(self._paths[place], _VIEWS[place.kind], self._request(path, ids, params))

    async def _write_image(self, path: str, place: _Place) -> None:
        ids = {"rollout_id": place.rollout_id, "span_id": place.span_id or "", "key": place.kind}
        params = {name: [value] for name, value in place.params}
        file = await rollout_transcript.medium(self._request(f"/ui/rollouts/{place.rollout_id}/media", ids, params))
        assert isinstance(file, File)  # the page shows only images that exist
        self.put(path, file.body)

    async def _draw(self, path: str, view: View, request: PageRequest) -> None:
        try:
            page = await view(request)
        except NotFound as error:
            # A span may link to a parent that was never recorded.
            page = PageContent("error.html", {"status": 404, "error": str(error), "advice": ""}, "Not found", 404)
        assert isinstance(page, PageContent)  # pages without actions
        html = rendering.html(page, request, navigation=(), message="").decode()
        up = "../" * path.count("/")
        script = f"{up}assets/bundle.js" if path == _INDEX else None

        def locate(target: str) -> str | None:
            location = self._locate(target)
            return None if location is None else f"{up}{location}"

        self.put(path, StaticPage.convert(html, locate, script).encode())

    def _locate(self, target: str) -> str | None:
        """Return the path of a page or a file in the bundle. A page without a path gets one, and will be written."""
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            return None
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        params = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path in {"/ui/", "/ui/rollouts"} and not params:
            return _INDEX
        if (static := _STATIC.fullmatch(parts.path)) is not None:
            return f"assets/{static['name']}" if static["name"] in _ASSETS else None
        if (image := _IMAGE.fullmatch(parts.path)) is not None and unquote(image["rollout"]) in self._counts:
            rollout_id, attempt = unquote(image["rollout"]), params.get("attempt")
            folder = self._paths[_Place(rollout_id, "transcript")].rpartition("/")[0]
            chosen = () if attempt is None else (("attempt", attempt),)
            path = f"{folder}/image-{image['key']}"
            self._images[path] = _Place(rollout_id, image["key"], chosen, unquote(image["span"]))
            return path
        place = self._place(parts.path, params)
        if place is None:
            return None
        if place not in self._paths:
            count = self._counts[place.rollout_id]
            if count >= _MOST_PAGES:
                return None
            self._counts[place.rollout_id] = count + 1
            folder = self._paths[_Place(place.rollout_id, "transcript")].rpartition("/")[0]
            self._paths[place] = f"{folder}/{place.kind}-{count + 1:04}.html"
            self._waiting.append(place)
        return f"{self._paths[place]}{fragment}"

    def _place(self, path: str, params: Mapping[str, str]) -> _Place | None:
        """Return the page at an address of the dashboard; None if it cannot be in the bundle."""
        match = _PAGE.fullmatch(path)
        if match is None or not _NEW_STATES.isdisjoint(params):
            return None
        rollout_id, kind, span_id = unquote(match["rollout"]), match["kind"] or "transcript", match["span"]
        if kind == "raw" and "span" in params:
            kind, span_id = "spans", params["span"]
        elif span_id is not None:
            span_id = unquote(span_id)
        if kind == "spans" and span_id is not None:
            kind = "span"
        if rollout_id not in self._counts or kind not in _VIEWS or (span_id is not None) != (kind == "span"):
            return None
        parameters = {name: params[name] for name in _PARAMETERS[kind] if name in params}
        if "attempt" in parameters:
            number = self.attempts[rollout_id].get(parameters.pop("attempt"))
            if number is None:
                return None
            parameters |= {"attempt": number} if number else {}
        return _Place(rollout_id, kind, tuple(sorted(parameters.items())), span_id)

    def _request(self, path: str, ids: Mapping[str, str], params: Mapping[str, Sequence[str]]) -> PageRequest:
        return PageRequest(
            store=self.store,
            base="",
            partition="default",
            path=path,
            ids=ids,
            params=params,
            visitor=Visitor("reader", "bundle"),
            is_read_only=True,
            extra={"is_bundle": True},
        )

    def put(self, path: str, content: bytes) -> None:
        """Write a file."""
        file = self.directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        self.files[path] = hashlib.sha256(content).hexdigest()
        self.size += len(content)

    def manifest(self, position: int) -> bytes:
        """Return the description of the bundle as JSON."""
        rollouts = {rollout_id: self._paths[_Place(rollout_id, "transcript")] for rollout_id in self.rollout_ids}
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "position": position,
            "rollouts": rollouts,
            "files": dict(sorted(self.files.items())),
        }
        return orjson.dumps(document, option=orjson.OPT_INDENT_2)


async def _attempt_numbers(store: SQLStore, rollout: Rollout) -> dict[str, str]:
    if not isinstance(rollout, AttemptedRollout):
        return {}
    latest = rollout.attempt
    attempts = [latest] if latest.sequence_id == 1 else await store.query_attempts(rollout.rollout_id)
    numbers = {
        attempt.attempt_id: "" if attempt.attempt_id == latest.attempt_id else str(attempt.sequence_id)
        for attempt in attempts
    }
    return numbers | {str(attempt.sequence_id): numbers[attempt.attempt_id] for attempt in attempts}


def _checked_directory(directory: Path, *, overwrite: bool) -> Path:
    """Return the absolute path of a directory in which there is nothing but a bundle that may be replaced.

    Raises:
        Conflict: the directory contains something else.
    """
    directory = directory.absolute()
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return directory
    names = _files_of_bundle(directory)
    if names is None:
        raise Conflict(f"{directory} exists and is no bundle", "choose a new directory")
    if not overwrite:
        raise Conflict(f"{directory} has a bundle", "choose a new directory, or replace it (--overwrite)")
    for file in sorted(directory.rglob("*")):
        if not file.is_dir() and str(file.relative_to(directory)) not in names:
            raise Conflict(f"{file} is not a file of the bundle", "move it, or choose a new directory")
    return directory


def _files_of_bundle(directory: Path) -> set[str] | None:
    """Return the paths of the files of a bundle; None if the directory contains no bundle."""
    try:
        manifest: Any = orjson.loads((directory / _MANIFEST).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    if not isinstance(manifest, dict) or cast("dict[str, Any]", manifest).get("format") != FORMAT:
        return None
    return {_MANIFEST, *cast("dict[str, Any]", manifest).get("files", {})}


def _replace(source: Path, directory: Path) -> None:
    """Move a bundle to its directory.

    A directory that exists stays and gets other files, because it may be the current directory of a process. At each
    moment it is empty or has a manifest, so a call that was stopped can be repeated.
    """
    if not directory.exists():
        source.rename(directory)
        return
    for path in sorted(directory.iterdir(), key=_is_manifest):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in sorted(source.iterdir(), key=_is_manifest, reverse=True):
        path.rename(directory / path.name)
    source.rmdir()


def _is_manifest(path: Path) -> bool:
    return path.name == _MANIFEST
