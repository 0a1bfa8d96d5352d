"""Learning while the search engine is in use: one asyncio task runs queries, another task learns from their results.

Each query is a rollout, which a runner executes at once instead of taking it from the store's queue. A ranking is the
set of parameters of the search engine.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from store.examples.doc_search.agent import as_resource
from store.examples.doc_search.bm25f import Ranking
from store.examples.doc_search.corpus import FIELDS
from store.examples.doc_search.tuner import nearby
from store.models import PromptTemplate
from store.training.algorithms.rollout_ends import Finished, follow
from store.training.running.heartbeat import Heartbeat

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from store.interface.store import Store
    from store.models import Rollout
    from store.training.running.runner import Runner

LIVE = "doc-search-live"
"""The id of the resources that every query uses. Each version of the ranking is a version of these resources."""
LEARNED = "learned"
"""The name under which the resources contain the state of the learner."""
BATCH = 50
"""The number of ended rollouts after which the next version is published."""

_STEP = 0.3
_HEARTBEAT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Learned:
    """The state of the learner. The state and the ranking in use are stored in one call, so they always match."""

    cursor: str | None = None
    """The position in the store's log after which the next batch of rollouts begins; None for the start of the log."""
    rollouts: list[str] = field(default_factory=list[str])
    """The ids of the rollouts in the last batch, from which this version was learned."""
    total: int = 0
    """The number of rollouts from which this version and all earlier versions were learned."""
    best: str = ""
    """The best ranking so far, as JSON text."""
    to_beat: float | None = None
    """The mean reward of the best ranking in the last batch, while a similar ranking is in use. None while the best
    ranking itself is in use."""
    version: int = 0
    """The number of the version; the first version is 0."""

    @property
    def ranking(self) -> Ranking:
        """The best ranking so far."""
        return Ranking.from_json(self.best)


class RankingLearner:
    """Learner that uses the best ranking and a similar ranking in turns, each for one batch of rollouts.

    After each pair of batches, the learner keeps the ranking with the greater mean reward. The best ranking is measured
    again each time, because rewards also depend on the queries.

    Args:
        store: the store with the rollouts, in which the learner also publishes rankings.
        seed: the seed of the rankings.
        say: function that is called with a message about each version.
    """

    def __init__(self, store: Store, seed: int, say: Callable[[str], None]) -> None:
        self._store = store
        self._seed = seed
        self._say = say
        self._used = Ranking.plain(len(FIELDS))
        self.learned = Learned(best=self._used.to_json())

    async def begin(self) -> None:
        """Continue with the state in the store, if there is one, and publish the state.

        Queries use the resources that were published last. So a state from the store is published again.
        """
        resources = await self._store.get_resources_by_id(LIVE)
        if resources is not None:
            state = cast("PromptTemplate", resources.resources[LEARNED])
            self.learned = Learned(**json.loads(state.template))
            self._used = Ranking.from_json(cast("PromptTemplate", resources.resources["ranking"]).template)
            self._say(f"continues with version {self.learned.version}, after {self.learned.total:,} rollouts")
        await self._publish(replace(self.learned, rollouts=[]), self._used)

    async def learn(self) -> None:
        """Publish the next version after each batch of ended rollouts, until the call is cancelled."""
        batches = cast("AsyncGenerator[Finished]", follow(self._store, self.learned.cursor, min_rollouts=BATCH))
        async with aclosing(batches):
            async for batch in batches:
                # The store may contain rollouts of other programs. Only rollouts with these resources are queries.
                query_rollouts = [rollout for rollout in batch.rollouts if rollout.resources_id == LIVE]
                await self._learn(query_rollouts, batch.cursor)

    async def _learn(self, ended: Sequence[Rollout], cursor: str | None) -> None:
        """Evaluate the ranking that was in use, and publish the ranking to use next."""
        rewards = [rollout.reward for rollout in ended if rollout.reward is not None]
        mean = statistics.fmean(rewards) if rewards else 0.0
        before, used = self.learned, self._used
        next_state = replace(
            before,
            cursor=cursor,
            rollouts=[rollout.rollout_id for rollout in ended],
            total=before.total + len(ended),
            version=before.version + 1,
        )
        if before.to_beat is None:
            next_state, verdict = replace(next_state, to_beat=mean), "the reference for the next version"
            rng = random.Random(f"{self._seed}/{next_state.version}")
            used = nearby(before.ranking, _STEP, rng)
        else:
            is_better = mean > before.to_beat
            next_state = replace(next_state, best=used.to_json() if is_better else before.best, to_beat=None)
            verdict, used = "kept" if is_better else "dropped", next_state.ranking
        await self._publish(next_state, used)
        self._say(f"version {before.version}: mean reward {mean:.3f} of {len(ended)} rollouts, {verdict}")

    async def _publish(self, learned: Learned, used: Ranking) -> None:
        state = PromptTemplate(template=json.dumps(asdict(learned)), engine="f-string")
        await self._store.update_resources(LIVE, {**as_resource(used), LEARNED: state})
        self.learned, self._used = learned, used


class Asking:
    """A simulated user, who sends queries one by one. The runner executes each query at once, without the queue.

    Args:
        runner: the runner that executes the queries.
        tasks: the possible queries.
        rng: the random generator that selects the queries.
    """

    def __init__(self, runner: Runner[Any], tasks: Sequence[Any], rng: random.Random) -> None:
        self._runner = runner
        self._tasks = tasks
        self._rng = rng
        self.sent = 0

    async def ask(self) -> None:
        """Send queries until the call is cancelled."""
        runner = self._runner
        heartbeat = Heartbeat(runner.store, runner.label, _HEARTBEAT_SECONDS, 0.5, "thread", include_gpu=False)
        async with heartbeat.sent():
            # This first heartbeat ends the rollouts that a killed process of the same name left unfinished.
            await heartbeat.introduce()
            while True:
                await runner.step(self._rng.choice(self._tasks), mode="train")
                self.sent += 1


async def ask_and_learn(asking: Asking, learner: RankingLearner) -> None:
    """Send queries and learn from their results at the same time, until the call is cancelled or a task fails."""
    await learner.begin()
    async with asyncio.TaskGroup() as group:
        group.create_task(asking.ask())
        group.create_task(learner.learn())
