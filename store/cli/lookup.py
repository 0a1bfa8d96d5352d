"""Lookup of abbreviated ids: users may give a unique beginning of an id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from store.cli.errors import Ambiguous
from store.errors import Invalid, NotFound

if TYPE_CHECKING:
    from store.interface.store import AsAt, Store

    Search = Callable[[Store, str, int], Awaitable[tuple[Sequence[str], int]]]

Kind = Literal["rollout", "resources", "worker", "attempt"]
Match = tuple[Kind, str]

_PAGE: Final = 200
_LISTED: Final = 10


async def rollout(store: Store, prefix: str) -> str:
    """Return the id of the rollout whose id is `prefix`, or begins with `prefix`.

    The beginning may omit the start of the id, for example `ro-`. If no id begins with `prefix`, the text may also be
    the name of a group with only one rollout, such as the flow of an imported run.

    Raises:
        NotFound: there is no such rollout.
        Ambiguous: several rollout ids begin with `prefix`.
    """
    from store.models.queries import RolloutQuery

    try:
        return (await anything(store, prefix, ("rollout",)))[1]
    except NotFound:
        group_page = await store.find_rollouts(RolloutQuery.of(group_in=[prefix], limit=1))
        if group_page.total != 1:
            raise
        return group_page.items[0].rollout_id


async def anything(store: Store, prefix: str, kinds: Sequence[Kind] = ("rollout", "resources", "worker")) -> Match:
    """Return the kind and the id of the object whose id is `prefix`, or begins with `prefix`.

    Raises:
        NotFound: no id of these kinds begins with `prefix`.
        Ambiguous: several ids begin with `prefix`.
        Invalid: `prefix` is empty.
    """
    if not prefix:
        raise Invalid("ID", "is empty; give at least the beginning of an id")
    matches: list[Match] = []
    are_all = True
    for kind in kinds:
        ids, complete = await _candidates(store, kind, prefix)
        if prefix in ids:
            return kind, prefix
        matches.extend((kind, object_id) for object_id in ids)
        are_all = are_all and complete
    return _only(matches, prefix, kinds, are_all=are_all)


async def attempt(store: Store, rollout_id: str, text: str, as_at: AsAt | None = None) -> str:
    """Return the id of an attempt. `text` is the id, its beginning, the number of the attempt, or `latest`.

    If `text` consists of digits, it must be the number of an attempt, or a complete id without its prefix `at-`.
    Digits never stand for the beginning of an id.

    Args:
        store: the store with the rollout.
        rollout_id: the rollout of the attempt.
        text: the text that the user gave.
        as_at: search the attempts that the store contained at this moment; None for now.

    Raises:
        NotFound: the rollout has no such attempt.
        Ambiguous: several attempt ids begin with `text`.
    """
    attempts = await store.query_attempts(rollout_id, as_at=as_at)
    if text == "latest" and attempts:
        return attempts[-1].attempt_id
    numbered = [item.attempt_id for item in attempts if text == str(item.sequence_id)]
    exact = [item.attempt_id for item in attempts if text in {item.attempt_id, item.attempt_id.partition("-")[2]}]
    if numbered or exact:
        return (numbered or exact)[0]
    if text.isascii() and text.isdigit():
        listing = f"`rollbook ls attempts {rollout_id}` lists them"
        raise NotFound("attempt", text, f"{rollout_id} has no attempt {text}; {listing}")
    matches: list[Match] = [("attempt", item.attempt_id) for item in attempts if _begins(item.attempt_id, text)]
    return _only(matches, text, ("attempt",), are_all=True)[1]


async def _candidates(store: Store, kind: Kind, prefix: str) -> tuple[list[str], bool]:
    """Return `[prefix]` if an object has exactly this id, otherwise ids that begin with `prefix`.

    The second value is False if more ids may match than are returned.
    """
    getters = {
        "rollout": store.get_rollout_by_id,
        "resources": store.get_resources_by_id,
        "worker": store.get_worker_by_id,
    }
    if await getters[kind](prefix) is not None:
        return [prefix], True
    matching: list[str] = []
    offset = 0
    while True:
        ids, total = await _SEARCHES[kind](store, prefix, offset)
        matching.extend(object_id for object_id in ids if _begins(object_id, prefix))
        offset += len(ids)
        if offset >= total or not ids:
            return matching, True
        if len(matching) > 1:
            return matching, False


def _begins(object_id: str, prefix: str) -> bool:
    return object_id.startswith(prefix) or object_id.partition("-")[2].startswith(prefix)


def _only(matches: Sequence[Match], prefix: str, kinds: Sequence[Kind], *, are_all: bool) -> Match:
    name = " or ".join(kinds)
    match matches:
        case []:
            listed = "attempts --rollout ID" if kinds == ("attempt",) else "rollouts"
            text = f"no id of a {name} begins with {prefix!r}; `rollbook ls {listed}` lists them"
            raise NotFound(name, prefix, text)
        case [only]:
            return only
        case _:
            candidates = [f"{kind} {object_id}" if len(kinds) > 1 else object_id for kind, object_id in matches]
            raise Ambiguous(name, prefix, candidates[:_LISTED], are_all=are_all and len(candidates) <= _LISTED)


async def _rollouts(store: Store, part: str, offset: int) -> tuple[Sequence[str], int]:
    from store.models.queries import RolloutQuery

    page = await store.find_rollouts(RolloutQuery.of(rollout_id_contains=part, limit=_PAGE, offset=offset))
    return [item.rollout_id for item in page], page.total


async def _resources(store: Store, part: str, offset: int) -> tuple[Sequence[str], int]:
    from store.models.queries import ResourcesQuery

    page = await store.find_resources(ResourcesQuery.of(resources_id_contains=part, limit=_PAGE, offset=offset))
    return [item.resources_id for item in page], page.total


async def _workers(store: Store, part: str, offset: int) -> tuple[Sequence[str], int]:
    from store.models.queries import WorkerQuery

    page = await store.find_workers(WorkerQuery.of(worker_id_contains=part, limit=_PAGE, offset=offset))
    return [item.worker_id for item in page], page.total


_SEARCHES: Final[dict[str, Search]] = {"rollout": _rollouts, "resources": _resources, "worker": _workers}
