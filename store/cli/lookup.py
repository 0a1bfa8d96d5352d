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
Found = tuple[Kind, str]

_PAGE: Final = 200
_LISTED: Final = 10


async def rollout(store: Store, given: str) -> str:
    """Return the id of the rollout whose id is `given`, or begins with `given`.

    The beginning may omit the prefix of the id, for example `ro-`. If no id begins with `given`, it may be a group with
    only one rollout, such as the flow of an imported run.

    Raises:
        NotFound: there is no such rollout.
        Ambiguous: several rollout ids begin with `given`.
    """
    from store.models.queries import RolloutQuery

    try:
        return (await anything(store, given, ("rollout",)))[1]
    except NotFound:
        of_group = await store.find_rollouts(RolloutQuery.of(group_in=[given], limit=1))
        if of_group.total != 1:
            raise
        return of_group.items[0].rollout_id


async def anything(store: Store, given: str, kinds: Sequence[Kind] = ("rollout", "resources", "worker")) -> Found:
    """Return the kind and the id of the object whose id is `given`, or begins with `given`.

    Raises:
        NotFound: no id of these kinds begins with `given`.
        Ambiguous: several ids begin with `given`.
        Invalid: `given` is empty.
    """
    if not given:
        raise Invalid("ID", "is empty; give at least the beginning of an id")
    found: list[Found] = []
    are_all = True
    for kind in kinds:
        ids, complete = await _candidates(store, kind, given)
        if given in ids:
            return kind, given
        found.extend((kind, each) for each in ids)
        are_all = are_all and complete
    return _only(found, given, kinds, are_all=are_all)


async def attempt(store: Store, rollout_id: str, given: str, as_at: AsAt | None = None) -> str:
    """Return the id of an attempt. `given` is the id, its beginning, the number of the attempt, or `latest`.

    If `given` consists of digits, it must be the number of an attempt, or a complete id without its prefix `at-`.
    Digits never stand for the beginning of an id.

    Args:
        store: the store with the rollout.
        rollout_id: the rollout of the attempt.
        given: the text that the user gave.
        as_at: search the attempts that the store contained at this moment; None for now.

    Raises:
        NotFound: the rollout has no such attempt.
        Ambiguous: several attempt ids begin with `given`.
    """
    attempts = await store.query_attempts(rollout_id, as_at=as_at)
    if given == "latest" and attempts:
        return attempts[-1].attempt_id
    numbered = [each.attempt_id for each in attempts if given == str(each.sequence_id)]
    exact = [each.attempt_id for each in attempts if given in {each.attempt_id, each.attempt_id.partition("-")[2]}]
    if numbered or exact:
        return (numbered or exact)[0]
    if given.isascii() and given.isdigit():
        listing = f"`rollbook ls attempts {rollout_id}` lists them"
        raise NotFound("attempt", given, f"{rollout_id} has no attempt {given}; {listing}")
    found: list[Found] = [("attempt", each.attempt_id) for each in attempts if _begins(each.attempt_id, given)]
    return _only(found, given, ("attempt",), are_all=True)[1]


async def _candidates(store: Store, kind: Kind, given: str) -> tuple[list[str], bool]:
    """Return `[given]` if an object has exactly this id, otherwise ids that begin with `given`.

    The second value is False if more ids may match than are returned.
    """
    if await _EXISTS[kind](store, given):
        return [given], True
    matching: list[str] = []
    seen = 0
    while True:
        ids, total = await _SEARCHES[kind](store, given, seen)
        matching.extend(each for each in ids if _begins(each, given))
        seen += len(ids)
        if seen >= total or not ids:
            return matching, True
        if len(matching) > 1:
            return matching, False


def _begins(whole: str, given: str) -> bool:
    return whole.startswith(given) or whole.partition("-")[2].startswith(given)


def _only(found: Sequence[Found], given: str, kinds: Sequence[Kind], *, are_all: bool) -> Found:
    name = " or ".join(kinds)
    match found:
        case []:
            listed = "attempts --rollout ID" if kinds == ("attempt",) else "rollouts"
            text = f"no id of a {name} begins with {given!r}; `rollbook ls {listed}` lists them"
            raise NotFound(name, given, text)
        case [only]:
            return only
        case _:
            candidates = [f"{kind} {each}" if len(kinds) > 1 else each for kind, each in found]
            raise Ambiguous(name, given, candidates[:_LISTED], are_all=are_all and len(candidates) <= _LISTED)


async def _rollouts(store: Store, part: str, offset: int) -> tuple[Sequence[str], int]:
    from store.models.queries import RolloutQuery

    page = await store.find_rollouts(RolloutQuery.of(rollout_id_contains=part, limit=_PAGE, offset=offset))
    return [each.rollout_id for each in page], page.total


async def _resources(store: Store, part: str, offset: int) -> tuple[Sequence[str], int]:
    from store.models.queries import ResourcesQuery

    page = await store.find_resources(ResourcesQuery.of(resources_id_contains=part, limit=_PAGE, offset=offset))
    return [each.resources_id for each in page], page.total


async def _workers(store: Store, part: str, offset: int) -> tuple[Sequence[str], int]:
    from store.models.queries import WorkerQuery

    page = await store.find_workers(WorkerQuery.of(worker_id_contains=part, limit=_PAGE, offset=offset))
    return [each.worker_id for each in page], page.total


async def _is_rollout(store: Store, given: str) -> bool:
    return await store.get_rollout_by_id(given) is not None


async def _is_resources(store: Store, given: str) -> bool:
    return await store.get_resources_by_id(given) is not None


async def _is_worker(store: Store, given: str) -> bool:
    return await store.get_worker_by_id(given) is not None


_SEARCHES: Final[dict[str, Search]] = {"rollout": _rollouts, "resources": _resources, "worker": _workers}
_EXISTS: Final[dict[str, Callable[[Store, str], Awaitable[bool]]]] = {
    "rollout": _is_rollout,
    "resources": _is_resources,
    "worker": _is_worker,
}
