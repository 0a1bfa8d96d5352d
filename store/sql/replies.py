"""Results of repeated calls. Decision 15.

A call is repeated if an earlier call with the same idempotency key was executed. The functions take the stored `Repeat`
of the earlier call. If they read the store, they read its state at the log position of the earlier call. So both calls
get the same result.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from store.domain.commands import SpansOutcome
from store.domain.decide_runs import AppendedEvents
from store.domain.idempotency import Repeat
from store.models import Attempt, AttemptedRollout, ResourcesUpdate, Rollout
from store.models.queries import AttemptQuery
from store.sql.queries import SQLReads

Answer = Callable[[SQLReads, Repeat], Awaitable[Any]]


async def rollouts(store: SQLReads, repeat: Repeat) -> list[Rollout]:
    """Return the rollouts that the earlier call returned, without their attempts."""
    return [
        Rollout.model_construct(**{name: getattr(rollout, name) for name in Rollout.model_fields})
        for rollout in await _read(store, repeat)
    ]


async def rollout(store: SQLReads, repeat: Repeat) -> Rollout:
    """Return the only rollout that the earlier call returned, without its attempt."""
    return (await rollouts(store, repeat))[0]


async def claims(store: SQLReads, repeat: Repeat) -> list[AttemptedRollout]:
    """Return the rollouts that the earlier call claimed, with the attempts that it started.

    These attempts were the latest attempts of their rollouts at the position of the earlier call.
    """
    return [rollout for rollout in await _read(store, repeat) if isinstance(rollout, AttemptedRollout)]


async def attempted(store: SQLReads, repeat: Repeat) -> AttemptedRollout:
    """Return the only rollout that the earlier call returned, with the attempt that the call started."""
    return (await claims(store, repeat))[0]


async def attempt(store: SQLReads, repeat: Repeat) -> Attempt:
    """Return the attempt that the earlier call updated."""
    attempt_id = repeat.reply["attempt"]
    attempts = await store.find_attempts(repeat.reply["rollout"], AttemptQuery.of(as_at=repeat.position))
    return next(attempt for attempt in attempts if attempt.attempt_id == attempt_id)


async def resources(store: SQLReads, repeat: Repeat) -> ResourcesUpdate:
    """Return the resources that the earlier call published."""
    update = await store.get_resources_by_id(repeat.reply["resources"], as_at=repeat.position)
    assert update is not None  # the earlier call published the resources
    return update


def recorded(repeat: Repeat) -> SpansOutcome:
    """Return the result of the earlier call that recorded the spans."""
    reply = repeat.reply
    numbers = [(index, number) for index, number in reply["recorded"]]
    return SpansOutcome(numbers, reply.get("conflicts", []), reply.get("derived", []))


async def numbers(_: SQLReads, repeat: Repeat) -> list[int]:
    """Return the span numbers that the earlier call reserved."""
    return repeat.reply["numbers"]


async def number(_: SQLReads, repeat: Repeat) -> int:
    """Return the span number that the earlier call reserved."""
    return repeat.reply["numbers"][0]


def appended(repeat: Repeat) -> AppendedEvents:
    """Return the versions (the numbers in the run) of the events that the earlier call appended to a run."""
    return AppendedEvents(repeat.reply["first"], repeat.reply["last"], repeat.reply["kind"], is_repeated=True)


async def versions(_: SQLReads, repeat: Repeat) -> list[int]:
    """Return the versions of the events that the earlier call appended to a run."""
    return appended(repeat).versions


async def _read(store: SQLReads, repeat: Repeat) -> list[Rollout]:
    ids = repeat.reply["rollouts"]
    page = [await store.get_rollout_by_id(rollout_id, as_at=repeat.position) for rollout_id in ids]
    return [rollout for rollout in page if rollout is not None]
