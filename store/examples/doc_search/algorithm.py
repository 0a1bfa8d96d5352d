"""Algorithm that tunes rankings, the parameters of a search engine. It also kills a runner on purpose.

In each round, the algorithm publishes rankings, and enqueues a rollout for each query and ranking. Runners are
processes that execute rollouts, with a reward as the result. A restarted algorithm repeats the same steps. Its plan
then finds the rollouts that already exist, so they are not executed again.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from store.examples.doc_search.agent import as_resource
from store.examples.doc_search.bm25f import Ranking
from store.examples.doc_search.corpus import FIELDS
from store.examples.doc_search.loss import Loss, lose_a_runner
from store.examples.doc_search.runs import Run, begin, last_finished
from store.examples.doc_search.tuner import CANDIDATES, ROUNDS, Tuner
from store.models import AttemptedRollout
from store.training.algorithms.algorithm import Algorithm, Dataset
from store.training.algorithms.plan import Plan
from store.training.algorithms.rollout_ends import ENDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.examples.doc_search.library import Library
    from store.interface.store import Store
    from store.models import Rollout, RolloutMode

AT_ONCE = 16
"""The number of concurrent rollouts of a runner. While one rollout waits for the store, the other rollouts continue."""


class JobFailed(RuntimeError):
    """The job cannot continue because rollouts failed."""


class Progress(Protocol):
    """Display of the job's progress."""

    def begin(self, title: str, total: int) -> None:
        """Show the start of a part of the job. `total` is the number of the part's rollouts."""
        ...

    def advance(self, by: int) -> None:
        """Show that `by` more rollouts of the current part have ended."""
        ...

    def end(self, outcome: str) -> None:
        """Show the result of the current part."""
        ...

    def say(self, text: str) -> None:
        """Show a message."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """The parameters of the job: the numbers of rounds and queries, and the seed."""

    rounds: int = ROUNDS
    training_queries: int = 1_500
    queries_per_round: int = 80
    held_out_queries: int = 500
    seed: int = 0

    @property
    def queries_needed(self) -> int:
        """The minimum number of queries that the library must contain."""
        return self.training_queries + self.held_out_queries

    @property
    def rollouts(self) -> int:
        """The number of rollouts of the whole job."""
        return self.rounds * CANDIDATES * self.queries_per_round + 2 * self.held_out_queries

    def tasks(self, library: Library, rng: random.Random) -> tuple[list[Any], list[Any]]:
        """Return random training tasks and held-out tasks. Held-out tasks are used only for the final comparison.

        Each task is a query about a document of the library.

        Raises:
            JobFailed: the library has too few queries.
        """
        if len(library.queries) < self.queries_needed:
            raise JobFailed(
                f"the sources of this Python's standard library give {len(library.queries)} queries, too few"
            )
        drawn = rng.sample(library.queries, self.queries_needed)
        tasks = [
            {"query": query.text, "document": query.answer, "name": library.names[query.answer]} for query in drawn
        ]
        return tasks[: self.training_queries], tasks[self.training_queries :]


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one round."""

    best: float
    """The mean reward of the best ranking of the round."""
    mean: float
    """The mean reward of all rankings of the round."""
    seconds: float
    """The duration of the round."""


@dataclass(slots=True)
class SearchOutcome:
    """The results of the job.

    `before` and `after` contain the rewards of the held-out queries with the plain and with the tuned ranking. Both
    lists have the order of the queries.
    """

    tuned: Ranking
    run: str = ""
    rounds: list[Round] = field(default_factory=list[Round])
    held_out: list[Any] = field(default_factory=list[Any])
    before: list[float] = field(default_factory=list[float])
    after: list[float] = field(default_factory=list[float])
    loss: Loss | None = None
    is_resumed: bool = False
    """Whether an earlier process started the run, and this process continues it."""
    is_repeated: bool = False
    """Whether the run finished earlier, and its results were read from the store."""
    already_ended: int = 0
    """The number of rollouts that had already ended when the run was continued or reported again."""
    rollouts: int = 0
    """The number of rollouts that succeeded."""
    retried: list[str] = field(default_factory=list[str])
    """The ids of the rollouts that were executed more than once."""

    def summary(self) -> str:
        """Return the results that the rollouts do not contain, as JSON: the killed runner and the rounds' durations."""
        loss = None if self.loss is None else asdict(self.loss)
        return json.dumps({"loss": loss, "seconds": [result.seconds for result in self.rounds]})

    def add_summary(self, text: str) -> None:
        """Restore the results from the text that `summary` returned."""
        summary = json.loads(text)
        self.loss = None if summary.get("loss") is None else Loss(**summary["loss"])
        self.rounds = [
            replace(result, seconds=seconds)
            for result, seconds in zip(self.rounds, summary.get("seconds", ()), strict=False)
        ] or self.rounds


class Tuning(Algorithm):
    """Algorithm for one run of the job. `outcome` is updated during the run.

    Args:
        job: the parameters of the job.
        rng: the random generator that selects the queries of each round.
        fingerprint: a text that identifies the library of documents and queries. An earlier run with another library is
            not continued.
        progress: the display of the progress.
    """

    def __init__(self, job: Job, rng: random.Random, fingerprint: str, progress: Progress) -> None:
        self.outcome = SearchOutcome(Ranking.plain(len(FIELDS)))
        self._job = job
        self._rng = rng
        self._identity = json.dumps({"library": fingerprint, **asdict(job)}, sort_keys=True)
        self._progress = progress
        self._finished: Run | None = None
        self._plan = Plan("doc-search")
        self._published = 0
        self._losing: asyncio.Task[Loss] | None = None

    async def find_finished(self, store: Store) -> bool:
        """Return whether the job has finished in a store. Then `run` only reads the results of the job."""
        self._finished = await last_finished(store, self._identity)
        return self._finished is not None

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Tune the ranking with the training queries, then evaluate the plain and the tuned ranking.

        Args:
            train_dataset: the training queries.
            val_dataset: the held-out queries, with which both rankings are evaluated.

        Raises:
            JobFailed: a rollout failed.
        """
        training, held_out = _tasks(train_dataset), _tasks(val_dataset)
        job, plain, outcome = self._job, self.outcome.tuned, self.outcome
        run = self._finished or await begin(self.get_store(), self._identity)
        outcome.is_repeated = self._finished is not None
        outcome.run, outcome.is_resumed, outcome.held_out = run.name, run.is_resumed, held_out
        self._plan = Plan(run.name)
        if run.is_resumed:
            self._progress.say(f"{run.name} was started before and is continued")
        if outcome.is_repeated:
            self._progress.say(f"{run.name} has finished; its results are read from the store")
        tuner = Tuner(plain, job.seed)
        try:
            for step in range(1, job.rounds + 1):
                await self._round(step, tuner, self._rng.sample(training, job.queries_per_round))
            outcome.tuned = tuner.centre
            self._progress.begin("held-out queries", 2 * job.held_out_queries)
            outcome.before, outcome.after = await self._judge([plain, tuner.centre], held_out, job.rounds + 1, "test")
        finally:
            self._cancel_loss()
        before, after = statistics.fmean(outcome.before), statistics.fmean(outcome.after)
        self._progress.end(f"plain {before:.3f}, tuned {after:.3f}")
        if run.result is not None:
            outcome.add_summary(run.result)

    async def _round(self, step: int, tuner: Tuner, tasks: Sequence[Any]) -> None:
        started = time.perf_counter()
        rankings = tuner.propose()
        self._progress.begin(f"round {step} of {self._job.rounds}", len(rankings) * len(tasks))
        if step > 1 and self._losing is None and self._finished is None:
            self._losing = asyncio.create_task(lose_a_runner(self.get_store(), AT_ONCE // 2))
            self._losing.add_done_callback(self._report_loss)
        rewards = [
            statistics.fmean(ranking_rewards) for ranking_rewards in await self._judge(rankings, tasks, step, "train")
        ]
        tuner.learn(rankings, rewards)
        result = Round(max(rewards), statistics.fmean(rewards), time.perf_counter() - started)
        self.outcome.rounds.append(result)
        self._progress.end(f"best of {len(rankings)} {result.best:.3f}, mean {result.mean:.3f}")

    def _report_loss(self, losing: asyncio.Task[Loss]) -> None:
        if not losing.cancelled():
            self.outcome.loss = loss = losing.result()
            self._progress.say(
                f"killed {loss.worker_id} (pid {loss.pid}), which had {len(loss.rollout_ids)} unfinished attempts"
            )

    def _cancel_loss(self) -> None:
        if self._losing is not None:
            self._losing.cancel()

    async def _judge(
        self, rankings: Sequence[Ranking], tasks: Sequence[Any], step: int, mode: RolloutMode
    ) -> list[list[float]]:
        """Return, for each ranking, the reward of each task."""
        store, plan = self.get_store(), self._plan
        rollouts: list[Rollout] = []
        for ranking in rankings:
            # The plan identifies rollouts by epoch and task, so each ranking has its own epoch. Each ranking also has
            # its own version of the resources. A round is one step of the training.
            number, self._published = self._published, self._published + 1
            published = await plan.publish(store, as_resource(ranking), step=number)
            rollouts += await plan.enqueue(
                store, tasks, epoch=number, mode=mode, step=step, resources_id=published.resources_id
            )
        self.outcome.already_ended += sum(rollout.status in ENDED for rollout in rollouts)
        async for ended in plan.finished(store, rollouts):
            if ended.status != "succeeded":
                raise JobFailed(f"rollout {ended.rollout_id} ended {ended.status}; `rollbook history` shows the reason")
            self._progress.advance(1)
        rewards = await self._rewards(store, [rollout.rollout_id for rollout in rollouts])
        return [rewards[start : start + len(tasks)] for start in range(0, len(rewards), len(tasks))]

    async def _rewards(self, store: Store, rollout_ids: Sequence[str]) -> list[float]:
        """Return the reward of each rollout's latest attempt, and add the rollouts and retries to the outcome."""
        ended = await store.query_rollouts(rollout_id_in=rollout_ids)
        by_rollout = {rollout.rollout_id: rollout.reward for rollout in ended}
        rewards: list[float] = []
        for rollout_id in rollout_ids:
            reward = by_rollout.get(rollout_id)
            if reward is None:
                raise JobFailed(f"rollout {rollout_id} succeeded, but its attempt recorded no reward")
            rewards.append(reward)
        self.outcome.rollouts += len(rewards)
        self.outcome.retried += [
            rollout.rollout_id
            for rollout in ended
            if isinstance(rollout, AttemptedRollout) and rollout.attempt.sequence_id > 1
        ]
        return rewards


def _tasks(dataset: Dataset[Any] | None) -> list[Any]:
    return [] if dataset is None else [dataset[index] for index in range(len(dataset))]
