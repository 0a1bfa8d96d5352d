"""The algorithm: publishes rankings, has the runners judge them, moves on; and loses a runner on purpose on the way.

It speaks to the runners only through the store.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from store.examples.doc_search.agent import RANKING
from store.examples.doc_search.bm25f import Ranking
from store.examples.doc_search.tuner import CANDIDATES, ROUNDS, Tuner
from store.models import AttemptedRollout, EnqueueRolloutRequest, PromptTemplate, RolloutConfig
from store.semconv import GROUP_KEY, STEP_KEY, summarise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from store.examples.doc_search.corpus import Query
    from store.examples.doc_search.fleet import Fleet
    from store.examples.doc_search.library import Library
    from store.interface import Store
    from store.models import RolloutMode

CONFIG = RolloutConfig(unresponsive_seconds=3, retry_condition=["unresponsive"], max_attempts=3)
"""A runner that says nothing for three seconds is taken for dead, and others do its work."""

_REFRESH_SECONDS = 0.25
_STANDSTILL_SECONDS = 60.0
_READS_AT_ONCE = 16
_IN_FLIGHT = ("preparing", "running")
_OPEN = ("queuing", "requeuing", *_IN_FLIGHT)


class JobFailed(RuntimeError):
    """The tuning cannot go on: rollouts failed, or none finishes any more."""


class Progress(Protocol):
    """Whoever shows how far the job is."""

    def begin(self, title: str, total: int) -> None:
        """Show that a part of so many rollouts begins."""
        ...

    def advance(self, by: int) -> None:
        """Show that so many more rollouts of the part have ended."""
        ...

    def end(self, outcome: str) -> None:
        """Show what came of the part."""
        ...

    def say(self, text: str) -> None:
        """Show something that happened."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How large the job is."""

    rounds: int = ROUNDS
    training_queries: int = 1_500
    queries_per_round: int = 80
    held_out_queries: int = 500
    runners: int = 4
    seed: int = 0

    @property
    def queries_needed(self) -> int:
        """How many queries there must be."""
        return self.training_queries + self.held_out_queries

    @property
    def rollouts(self) -> int:
        """How many rollouts the whole job has."""
        return self.rounds * CANDIDATES * self.queries_per_round + 2 * self.held_out_queries


@dataclass(frozen=True, slots=True)
class Round:
    """What one round found: the mean reward of its best and of its average ranking, and how long it took."""

    best: float
    mean: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Loss:
    """A runner that was killed while it held rollouts: who it was, and which."""

    worker_id: str
    pid: int
    in_round: int
    rollout_ids: list[str]


@dataclass(slots=True)
class Outcome:
    """What the job did. `before` and `after` hold the reward of each held-out query, in the same order."""

    tuned: Ranking
    rounds: list[Round] = field(default_factory=list[Round])
    held_out: list[Query] = field(default_factory=list["Query"])
    before: list[float] = field(default_factory=list[float])
    after: list[float] = field(default_factory=list[float])
    loss: Loss | None = None
    rollouts: int = 0
    retried: list[str] = field(default_factory=list[str])
    """Rollouts that took more than one attempt."""


class Tuning:
    """One run of the job. `outcome` grows as it goes."""

    def __init__(self, store: Store, fleet: Fleet, library: Library, plan: Plan, name: str, progress: Progress) -> None:
        self.outcome = Outcome(Ranking.plain(len(library.index.lengths)))
        self._store = store
        self._fleet = fleet
        self._library = library
        self._plan = plan
        self._name = name
        self._progress = progress
        self._waiting_for: set[str] = set()

    async def run(self) -> None:
        """Tune on the training queries, then judge the plain and the tuned ranking on queries never tuned on.

        Raises:
            JobFailed: a rollout failed, or nothing moves any more.
        """
        plan, plain = self._plan, self.outcome.tuned
        rng = random.Random(plan.seed)
        queries = rng.sample(self._library.queries, plan.queries_needed)
        training, self.outcome.held_out = queries[: plan.training_queries], queries[plan.training_queries :]
        tuner = Tuner(plain, plan.seed)
        for _ in range(plan.runners):
            self._fleet.start()
        for step in range(1, plan.rounds + 1):
            await self._round(step, tuner, rng.sample(training, plan.queries_per_round))
        self.outcome.tuned = tuner.centre
        self._progress.begin("held-out queries", 2 * plan.held_out_queries)
        self.outcome.before, self.outcome.after = await self._judge(
            [plain, tuner.centre], self.outcome.held_out, plan.rounds + 1, "test"
        )
        before, after = statistics.fmean(self.outcome.before), statistics.fmean(self.outcome.after)
        self._progress.end(f"plain {before:.3f}, tuned {after:.3f}")

    async def cancel_what_is_open(self) -> None:
        """Take what nobody will wait for any more off the queue."""
        still_open = await self._store.query_rollouts(status_in=_OPEN, rollout_id_in=sorted(self._waiting_for))
        await asyncio.gather(
            *(self._store.update_rollout(rollout.rollout_id, status="cancelled") for rollout in still_open)
        )

    async def _round(self, step: int, tuner: Tuner, queries: Sequence[Query]) -> None:
        started = time.perf_counter()
        rankings = tuner.propose()
        self._progress.begin(f"round {step} of {self._plan.rounds}", len(rankings) * len(queries))
        rewards = [statistics.fmean(judged) for judged in await self._judge(rankings, queries, step, "train")]
        tuner.learn(rankings, rewards)
        found = Round(max(rewards), statistics.fmean(rewards), time.perf_counter() - started)
        self.outcome.rounds.append(found)
        self._progress.end(f"best of {len(rankings)} {found.best:.3f}, mean {found.mean:.3f}")

    async def _judge(
        self, rankings: Sequence[Ranking], queries: Sequence[Query], step: int, mode: RolloutMode
    ) -> list[list[float]]:
        """Return the reward of each query under each ranking."""
        requests: list[EnqueueRolloutRequest] = []
        for number, ranking in enumerate(rankings, start=1):
            # A resource is a model or a prompt; a ranking is neither, and travels as the text of a prompt.
            resource = PromptTemplate(template=ranking.to_json(), engine="f-string")
            published = await self._store.add_resources({RANKING: resource})
            metadata = {GROUP_KEY: f"{self._name}.{step}.{number}", STEP_KEY: step}
            requests += [
                EnqueueRolloutRequest(
                    input={
                        "query": query.text,
                        "document": query.answer,
                        "name": self._library.names[query.answer],
                    },
                    mode=mode,
                    resources_id=published.resources_id,
                    config=CONFIG,
                    metadata=metadata,
                )
                for query in queries
            ]
        enqueued = [rollout.rollout_id for rollout in await self._store.enqueue_many_rollouts(requests)]
        self._waiting_for = set(enqueued)
        await self._wait(step)
        rewards = await self._rewards(enqueued)
        return [rewards[start : start + len(queries)] for start in range(0, len(rewards), len(queries))]

    async def _wait(self, step: int) -> None:
        losing = asyncio.create_task(self._lose_a_runner(step)) if step > 1 and not self.outcome.loss else None
        last_end = time.monotonic()
        try:
            while self._waiting_for:
                ended = await self._store.wait_for_rollouts(sorted(self._waiting_for), timeout=_REFRESH_SECONDS)
                if failed := [rollout for rollout in ended if rollout.status != "succeeded"]:
                    raise JobFailed(
                        f"{len(failed)} rollouts ended {failed[0].status}, {failed[0].rollout_id} among them"
                    )
                if ended:
                    last_end = time.monotonic()
                elif time.monotonic() - last_end > _STANDSTILL_SECONDS:
                    raise JobFailed(
                        f"no rollout ended for {_STANDSTILL_SECONDS:.0f} s; {len(self._waiting_for)} are open"
                    )
                self._waiting_for.difference_update(rollout.rollout_id for rollout in ended)
                self._progress.advance(len(ended))
                self._fleet.replace_the_lost()
                if losing and losing.done():
                    losing.result()
        finally:
            if losing:
                losing.cancel()
                await asyncio.gather(losing, return_exceptions=True)

    async def _lose_a_runner(self, step: int) -> None:
        """Kill the runner that holds the most, once, and start another in its place."""
        while self.outcome.loss is None:
            held = await self._held()
            if held:
                worker_id = max(held, key=lambda worker: len(held[worker]))
                pid = self._fleet.kill(worker_id)
                # It may have finished them between the question and the kill; what it held is what it holds now.
                if left := (await self._held(worker_id)).get(worker_id):
                    self.outcome.loss = Loss(worker_id, pid, step, left)
                    self._progress.say(
                        f"killed runner {worker_id} (pid {pid}), which held {len(left)} unfinished attempts"
                    )
                self._fleet.start()
            await asyncio.sleep(_REFRESH_SECONDS / 10)

    async def _held(self, *dead: str) -> dict[str, list[str]]:
        """Return which rollouts each of our runners, and of those named, holds unfinished."""
        held: dict[str, list[str]] = {}
        for rollout in await self._store.query_rollouts(status_in=_IN_FLIGHT):
            if isinstance(rollout, AttemptedRollout) and rollout.attempt.status in _IN_FLIGHT:
                worker_id = rollout.attempt.worker_id or ""
                if worker_id in self._fleet.members or worker_id in dead:
                    held.setdefault(worker_id, []).append(rollout.rollout_id)
        return held

    async def _rewards(self, rollout_ids: Sequence[str]) -> list[float]:
        """Return the reward of each rollout's latest attempt, and count what it took."""
        limit = asyncio.Semaphore(_READS_AT_ONCE)

        async def read(rollout: AttemptedRollout) -> tuple[str, float]:
            async with limit:
                spans = await self._store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id, name="reward")
            rewards = [value for span in spans for _, value in summarise(span.name, span.attributes).rewards[:1]]
            if not rewards:
                raise JobFailed(f"rollout {rollout.rollout_id} succeeded, but its attempt recorded no reward")
            return rollout.rollout_id, rewards[-1]

        ended = _attempted(await self._store.query_rollouts(rollout_id_in=rollout_ids))
        found = dict(await asyncio.gather(*(read(rollout) for rollout in ended)))
        self.outcome.rollouts += len(found)
        self.outcome.retried += [rollout.rollout_id for rollout in ended if rollout.attempt.sequence_id > 1]
        return [found[rollout_id] for rollout_id in rollout_ids]


def _attempted(rollouts: Iterable[object]) -> list[AttemptedRollout]:
    return [rollout for rollout in rollouts if isinstance(rollout, AttemptedRollout)]
