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
from store.dashboard.views.formats import pretty
from store.db.dialect import ReadSession
from store.db.reports import resource_rows
from store.db.reports.resource_rows import VersionRow
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


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one resource between two versions."""

    name: str
    state: str
    """`same`, `changed`, `added`, `removed` or `too large` (not compared)."""
    diff: Diff | None


@pages.get("/ui/resources")
async def resources(request: PageRequest) -> PageContent:
    """List the resources ids, the most recently published first."""
    limit, offset = request.rows, request.whole("offset", 0)
    work = partial(resource_rows.resources_rows, contains=request.one("q"), limit=limit, offset=offset)
    rows, total = await request.store.core.look(work, snapshot=True)
    values = {"resources": rows, "total": total, "limit": limit, "offset": offset}
    means = [row.use.mean_reward for row in rows if row.use.mean_reward is not None]
    hidden = {"best": max(means, default=0.0), "sought": request.one("q")}
    return PageContent("resources.html", values, "Resources", hidden=hidden)


@dataclass(frozen=True, slots=True)
class _Found:
    versions: list[VersionRow]
    shown: VersionRow
    content: dict[str, Any] | None
    before: str | None
    against_id: str
    against: VersionRow | None
    old: dict[str, Any] | None


@pages.get("/ui/resources/{resources_id}")
async def one(request: PageRequest) -> PageContent:
    """Show one version of resources, the list of all versions, and the differences from another version or another id.

    The parameter `version` selects the version; `against_id` and `against` select the version to compare with.
    """
    resources_id = request.ids["resources_id"]
    view = request.among("view", ("unified", "side"), "unified")
    found = await request.store.core.look(partial(_found, request=request), snapshot=True)
    most = None if request.one("whole") == "1" else MOST_CHARACTERS
    against = found.against
    changes = None
    if against is not None and found.content is not None and found.old is not None:
        # Matching long texts takes time, so it runs in a thread and does not block other requests.
        changes = await asyncio.to_thread(compared, found.old, found.content)
    values = {
        "resources_id": resources_id,
        "version": found.shown.version,
        "versions": found.versions,
        "content": None if found.content is None else contents(found.content, most),
        "against": None
        if found.against is None
        else {"resources_id": found.against_id, "version": found.against.version},
        "changes": changes,
    }
    means = [row.use.mean_reward for row in found.versions if row.use.mean_reward is not None]
    hidden = {"view": view, "before": found.before, "shown": found.shown, "best": max(means, default=0.0)}
    return PageContent("resource.html", values, resources_id, hidden=hidden)


async def _found(session: ReadSession, request: PageRequest) -> _Found:
    resources_id = request.ids["resources_id"]
    versions = await resource_rows.versions(session, resources_id)
    if not versions:
        raise NotFound("resources", resources_id)
    shown = _version(versions, request.maybe_whole("version", least=1), "version") or versions[0]
    before = await resource_rows.published_before(session, resources_id)
    against_id = request.one("against_id") or resources_id
    number = request.maybe_whole("against", least=1)
    against = None
    if against_id != resources_id:
        others = await resource_rows.versions(session, against_id)
        if not others:
            raise NotFound("resources", against_id)
        against = _version(others, number, "against") or others[0]
    elif number is not None:
        against = _version(versions, number, "against")
    else:
        against = next((row for row in versions if row.version < shown.version), None)
    content = await _opened(session, shown)
    old = None if against is None else await _opened(session, against)
    return _Found(versions, shown, content, before, against_id, against, old)


def _version(rows: list[VersionRow], number: int | None, parameter: str) -> VersionRow | None:
    if number is None:
        return None
    found = next((row for row in rows if row.version == number), None)
    if found is None:
        newest, oldest = rows[0].version, rows[-1].version
        raise Invalid(parameter, f"version {number} is not shown; choose one of {oldest} to {newest}")
    return found


async def _opened(session: ReadSession, row: VersionRow) -> dict[str, Any] | None:
    if row.bytes is None or row.bytes > MOST_BYTES:
        return None
    return await resource_rows.content(session, row.position)


def contents(resources: Mapping[str, Any], most: int | None) -> list[ResourceContent]:
    """Return resources for display.

    Each text is truncated to `most` characters, and all texts together to `MOST_SHOWN`. With None, no text is
    truncated.
    """
    found: list[ResourceContent] = []
    left = MOST_SHOWN
    for name, resource in resources.items():
        kind, text, fields = _parts(resource)
        shown = text if text is None or most is None else text[: min(most, left)]
        left -= len(shown or "")
        found.append(ResourceContent(name, kind, shown, fields, is_cut=shown != text))
    return found


def _parts(resource: Any) -> tuple[str, str | None, dict[str, Any]]:
    if not isinstance(resource, dict):
        return "value", None, {"value": resource}
    given: dict[str, Any] = {str(name): without_secrets(value, str(name)) for name, value in _items(resource)}
    kind = str(given.pop("resource_type", "unknown"))
    text = given.pop("template", None) if isinstance(given.get("template"), str) else None
    return kind, text, given


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items())


def without_secrets(value: Any, name: str = "") -> Any:
    """Return a value in which the API keys of other services are replaced by a placeholder."""
    if name in _SECRETS:
        return None if value is None else _HIDDEN
    if isinstance(value, dict):
        return {key: without_secrets(each, str(key)) for key, each in _items(value)}
    if isinstance(value, list):
        return [without_secrets(each) for each in _each(value)]
    return value


def _each(value: Any) -> list[Any]:
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
    # Each field has its own line, so that a change of one field does not affect the lines of the others.
    head = "\n".join(f"{name}: {value if isinstance(value, str) else pretty(value)}" for name, value in fields.items())
    return "\n".join(part for part in (f"type: {kind}", head, text) if part)
