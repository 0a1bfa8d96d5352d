"""Comparisons for programs. They read a database of this process, or over HTTP the JSON twins of a server's pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, get_args
from urllib.parse import quote

import orjson

from store.comparing.partitions import PlacedSelection, compared_partitions, cores_of
from store.comparing.reading import version_changes, version_effect
from store.comparing.usage_measures import with_usage
from store.comparing.windows import MOST_STEPS, STEPS, ResourcesVersion
from store.errors import Invalid, Unsupported
from store.interface.store import Store
from store.models import RolloutMode
from store.models.comparisons import SelectionComparison, VersionChange, VersionEffect
from store.models.missing_rewards import MissingReward
from store.models.prices import PriceTable
from store.sql.core import SQLCore
from store.sql.database import database_of

T = TypeVar("T")


async def compare_selections(
    store: Store,
    a: str,
    b: str,
    *,
    unrewarded: str = "failed:0",
    pairs: bool = True,
    prices: PriceTable | None = None,
) -> SelectionComparison:
    """Compare the rollouts of two selections: rewards, dimensions, failures, lengths and durations, task by task.

    Args:
        store: a database, or the store of a server.
        a: the first selection as the query string of a list of rollouts, such as `step_min=280&step_max=295&mode=train`
            or `group=flask-1296`; a URL of such a list is accepted too.
        b: the second selection. All differences are its values minus those of `a`. A selection may name another
            partition of the database, as in `partition=second&step=300`.
        unrewarded: how ended rollouts without a reward count: `out` (left out), `failed:0` (failed ones as 0), or
            `ended:0` (all as 0).
        pairs: whether rewards are paired by task (equal inputs) if at least two tasks are in both selections.
        prices: the prices of models; None for reported costs only. A server uses its prices instead.

    Raises:
        Invalid: a selection or a choice is not valid.
        NotFound: a partition does not exist.
        Forbidden: the key of the client is not valid for the partition of a selection.
        TooLarge: a selection has more than 100,000 rollouts.
    """
    first, second = PlacedSelection.parse(a, "a"), PlacedSelection.parse(b, "b")
    missing = MissingReward.parse(unrewarded)

    async def compare(_: SQLCore) -> SelectionComparison:
        database = database_of(store)
        assert database is not None  # this function runs only on a database
        async with cores_of(database, first, second) as cores:
            comparison = await compared_partitions(cores, first, second, missing, pairs=pairs)
            return await with_usage(cores, comparison, prices or PriceTable(), waits=True)

    return await read_figures(
        store,
        compare,
        "/ui/cohorts.json",
        {"a": first.text, "b": second.text, "unrewarded": str(missing), "pair": "task" if pairs else "nothing"},
        lambda page: SelectionComparison.model_validate(page["comparison"]),
    )


async def effect(
    store: Store,
    version: str,
    *,
    mode: str | None = "train",
    steps: int = STEPS,
    unrewarded: str = "failed:0",
    pairs: bool = True,
    prices: PriceTable | None = None,
) -> VersionEffect:
    """Return the effect of a version of resources: its first steps against the last steps of the version before.

    Args:
        store: a database, or the store of a server.
        version: the id of the resources and the version, such as `prompt@2`.
        mode: only rollouts of this mode; None for all.
        steps: the number of steps of each window.
        unrewarded: see `compare_selections`.
        pairs: see `compare_selections`.
        prices: see `compare_selections`.

    Raises:
        NotFound: no rollout used the version at a step, or none used an earlier version at an earlier step.
        Invalid: an argument is not valid.
    """
    of, missing = ResourcesVersion.parse(version), MissingReward.parse(unrewarded)
    _check(mode, steps)
    params = _params(mode, steps, missing) | {"version": of.version, "pair": "task" if pairs else "nothing"}
    work = partial(version_effect, of=of, missing=missing, mode=mode, steps=steps, pairs=pairs)

    async def measure(core: SQLCore) -> VersionEffect:
        answer = await core.look(work, snapshot=True)
        comparison = await with_usage([core, core], answer.comparison, prices or PriceTable(), waits=True)
        return answer.model_copy(update={"comparison": comparison})

    return await read_figures(
        store,
        measure,
        f"/ui/effects/{quote(of.resources_id, safe='')}.json",
        params,
        lambda page: VersionEffect.model_validate(page["effect"]),
    )


async def effects(
    store: Store,
    *,
    mode: str | None = "train",
    steps: int = STEPS,
    unrewarded: str = "failed:0",
    limit: int = 50,
) -> list[VersionChange]:
    """Return the effects of versions of resources on the rewards. The version with the latest first step comes first.

    The arguments are those of `effect`, and `limit`, the maximum number of versions.
    """
    missing = MissingReward.parse(unrewarded)
    _check(mode, steps)
    work = partial(version_changes, missing=missing, mode=mode, steps=steps, limit=limit)
    return await read_figures(
        store,
        lambda core: core.look(work, snapshot=True),
        "/ui/effects.json",
        _params(mode, steps, missing) | {"limit": limit},
        lambda page: [VersionChange.model_validate(row) for row in page["effects"]],
    )


def _check(mode: str | None, steps: int) -> None:
    if mode is not None and mode not in get_args(RolloutMode):
        raise Invalid("mode", f"{mode[:80]!r} must be one of {', '.join(get_args(RolloutMode))}, or None for all")
    if not 1 <= steps <= MOST_STEPS:
        raise Invalid("steps", f"must lie between 1 and {MOST_STEPS:,}")


def _params(mode: str | None, steps: int, missing: MissingReward) -> dict[str, Any]:
    return {"mode": mode or "any", "steps": steps, "unrewarded": str(missing)}


async def read_figures(
    store: Store,
    work: Callable[[SQLCore], Awaitable[T]],
    path: str,
    params: dict[str, Any],
    decode: Callable[[Any], T],
) -> T:
    """Return the result of `work` on a database, or the equal result from the page `path` of a server.

    Raises:
        Unsupported: the store is neither a database nor a server of one.
    """
    database = database_of(store)
    if database is not None:
        return await work(database.core)
    core = getattr(store, "core", None)
    if core is None:
        raise Unsupported("comparisons", "the store is neither a database nor a server of one")
    read: Callable[..., Awaitable[bytes]] = core.rollbook_read
    return decode(orjson.loads(await read("comparisons", path, params, bytes)))
