"""The pages of resources: their versions, the rewards with each version, and the differences between versions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from store.dashboard.diff.matching import Work
from store.dashboard.diff.texts import MOST_WORK, Diff, diff, is_comparable
from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views import compared as draw
from store.dashboard.views.figure_cache import cache_of
from store.dashboard.views.formats import pretty
from store.db.dialect import ReadSession
from store.db.queries import resource_list
from store.db.queries.resource_list import ResourcesRow, VersionRow
from store.errors import Invalid, NotFound

pages = Pages()

MOST_CHARACTERS: Final = 50_000
"""The maximum number of characters shown of one text, unless `whole=1` is given."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""The maximum size of a version whose content a page shows."""
MOST_COMPARED: Final = 1_000_000
"""The maximum number of characters of all compared texts together."""
MOST_SHOWN: Final = 1_000_000
"""The maximum number of characters of all texts of a version, unless `whole=1` is given."""
_SECRETS: Final = ("api_key",)
_HIDDEN: Final = "•••"


@dataclass(frozen=True, slots=True)
class ResourceContent:
    """One resource of a version."""

    name: str
    kind: str
    text: str | None
    """The text of a prompt template."""
    fields: dict[str, Any]
    """All other fields, without secrets."""
    is_cut: bool = False
    """Whether `text` is truncated."""


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one resource between two versions."""

    name: str
    state: str
    """`same`, `changed`, `added`, `removed` or `too large` (not compared)."""
    diff: Diff | None
    """The differences of the texts; None if the texts are equal or were not compared."""


@pages.get("/ui/resources")
async def resources(request: PageRequest) -> PageContent:
    """List the resources ids, the most recently published first."""
    limit, offset = request.rows, request.whole("offset", 0)
    missing, text = request.missing_reward(), request.one("q")
    cache = cache_of(request.store.core)

    async def look(session: ReadSession) -> tuple[list[ResourcesRow], int]:
        sums = await cache.rows(session, ("use sums", missing), partial(resource_list.use_sums, missing=missing))
        read = resource_list.resources_rows
        work = partial(read, sums=sums, missing=missing, contains=text, limit=limit, offset=offset)
        return await cache.read(session, ("resources", missing, text, limit, offset), work)

    rows, total = await request.store.core.look(look, snapshot=True)
    values = {"resources": rows, "total": total, "limit": limit, "offset": offset}
    means = [row.use.counted.mean for row in rows if row.use.counted.mean is not None]
    hidden = {"best": max(means, default=0.0), "sought": text, "draw": draw, "missing": missing}
    return PageContent("resources.html", values, "Resources", hidden=hidden)


@dataclass(frozen=True, slots=True)
class _Selection:
    versions: list[VersionRow]
    version: VersionRow
    content: dict[str, Any] | None
    """The resources of `version` by name; None if they were removed or are too large."""
    before: str | None
    """The id that was published for the first time directly before this id."""
    against_id: str
    against: VersionRow | None
    """The version with which `version` is compared."""
    old: dict[str, Any] | None
    """The resources of `against` by name."""


@pages.get("/ui/resources/{resources_id}")
async def one(request: PageRequest) -> PageContent:
    """Show one version of resources, the list of all versions, and the differences from another version or another id.

    The parameter `version` selects the version; `against_id` and `against` select the version to compare with.
    """
    resources_id = request.ids["resources_id"]
    view = request.among("view", ("unified", "side"), "unified")
    selection = await request.store.core.look(partial(_selection, request=request), snapshot=True)
    most = None if request.one("whole") == "1" else MOST_CHARACTERS
    against = selection.against
    changes = None
    if against is not None and selection.content is not None and selection.old is not None:
        # Matching long texts takes time, so it runs in a thread and does not block other requests.
        changes = await asyncio.to_thread(compared, selection.old, selection.content)
    values = {
        "resources_id": resources_id,
        "version": selection.version.version,
        "versions": selection.versions,
        "content": None if selection.content is None else contents(selection.content, most),
        "against": None
        if selection.against is None
        else {"resources_id": selection.against_id, "version": selection.against.version},
        "changes": changes,
    }
    hidden = {
        "view": view,
        "before": selection.before,
        "use": selection.version.use,
        "draw": draw,
        "missing": request.missing_reward(),
    }
    return PageContent("resource.html", values, resources_id, hidden=hidden)


async def _selection(session: ReadSession, request: PageRequest) -> _Selection:
    resources_id = request.ids["resources_id"]
    missing = request.missing_reward()
    cache = cache_of(request.store.core)
    sums = await cache.rows(session, ("use sums", missing), partial(resource_list.use_sums, missing=missing))
    counts = await cache.rows(session, "attempt counts", resource_list.attempt_counts)

    async def versions_of(id_: str) -> list[VersionRow]:
        read = partial(resource_list.versions, resources_id=id_, sums=sums, counts=counts, missing=missing)
        return await cache.read(session, ("versions", id_, missing), read)

    versions = await versions_of(resources_id)
    if not versions:
        raise NotFound("resources", resources_id)
    version = _version(versions, request.maybe_whole("version", least=1), "version") or versions[0]
    before = await resource_list.published_before(session, resources_id)
    against_id = request.one("against_id") or resources_id
    number = request.maybe_whole("against", least=1)
    against = None
    if against_id != resources_id:
        other_versions = await versions_of(against_id)
        if not other_versions:
            raise NotFound("resources", against_id)
        against = _version(other_versions, number, "against") or other_versions[0]
    elif number is not None:
        against = _version(versions, number, "against")
    else:
        against = next((row for row in versions if row.version < version.version), None)
    content = await _opened(session, version)
    old = None if against is None else await _opened(session, against)
    return _Selection(versions, version, content, before, against_id, against, old)


def _version(rows: list[VersionRow], number: int | None, parameter: str) -> VersionRow | None:
    if number is None:
        return None
    row = next((row for row in rows if row.version == number), None)
    if row is None:
        newest, oldest = rows[0].version, rows[-1].version
        raise Invalid(parameter, f"version {number} is not shown; choose one of {oldest} to {newest}")
    return row


async def _opened(session: ReadSession, row: VersionRow) -> dict[str, Any] | None:
    if row.bytes is None or row.bytes > MOST_BYTES:
        return None
    return await resource_list.content(session, row.position)


def contents(resources: Mapping[str, Any], most: int | None) -> list[ResourceContent]:
    """Return resources for display.

    Each text is truncated to `most` characters, and all texts together to `MOST_SHOWN`. With None, no text is
    truncated.
    """
    items: list[ResourceContent] = []
    left = MOST_SHOWN
    for name, resource in resources.items():
        kind, text, fields = _parts(resource)
        excerpt = text if text is None or most is None else text[: min(most, left)]
        left -= len(excerpt or "")
        items.append(ResourceContent(name, kind, excerpt, fields, is_cut=excerpt != text))
    return items


def _parts(resource: Any) -> tuple[str, str | None, dict[str, Any]]:
    if not isinstance(resource, dict):
        return "value", None, {"value": resource}
    fields: dict[str, Any] = {str(name): without_secrets(value, str(name)) for name, value in _items(resource)}
    kind = str(fields.pop("resource_type", "unknown"))
    text = fields.pop("template", None) if isinstance(fields.get("template"), str) else None
    return kind, text, fields


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items())


def without_secrets(value: Any, name: str = "") -> Any:
    """Return a value in which the API keys of other services are replaced by a placeholder."""
    if name in _SECRETS:
        return None if value is None else _HIDDEN
    if isinstance(value, dict):
        return {key: without_secrets(item, str(key)) for key, item in _items(value)}
    if isinstance(value, list):
        return [without_secrets(item) for item in _elements(value)]
    return value


def _elements(value: Any) -> list[Any]:
    return list(value)


def compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return the change of each resource, unchanged resources last."""
    changes: list[Change] = []
    work, left = Work(MOST_WORK), MOST_COMPARED
    for name in dict.fromkeys((*new, *old)):
        before = _text(old[name]) if name in old else None
        after = _text(new[name]) if name in new else None
        if before == after:
            changes.append(Change(name, "same", None))
            continue
        size = len(before or "") + len(after or "")
        if size > left or not is_comparable(before or "") or not is_comparable(after or ""):
            changes.append(Change(name, "too large", None))
            continue
        left -= size
        state = "added" if before is None else "removed" if after is None else "changed"
        changes.append(Change(name, state, diff(before or "", after or "", work)))
    return sorted(changes, key=lambda change: change.state == "same")


def _text(resource: Any) -> str:
    """Return a resource as text for a comparison: its fields, each beginning on a new line, and then its prompt."""
    kind, text, fields = _parts(resource)
    # Each field has its own line, so that a change of one field does not affect the lines of other fields.
    head = "\n".join(f"{name}: {value if isinstance(value, str) else pretty(value)}" for name, value in fields.items())
    return "\n".join(part for part in (f"type: {kind}", head, text) if part)
