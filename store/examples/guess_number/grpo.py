"""Group-relative policy optimisation (GRPO), which trains a policy on games that agents play.

The policy is the model that chooses the guesses of a game. Each game is a rollout. The games with the same secret in
the same step of the training form a group.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from store.examples.guess_number.course import Course, Exam, StepResult
from store.examples.guess_number.inference import Inference, LocalInference, VllmInference
from store.examples.guess_number.policy import Learner, TokenModel
from store.models import PromptTemplate, RolloutConfig
from store.models.queries import MAX_ROLLOUTS
from store.semconv import GROUP_KEY
from store.training import Algorithm, Plan, Triplet, trajectories

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import NamedResources, Rollout, Span
    from store.training import LLMProxy
    from store.training.algorithms.algorithm import Dataset

LIMITS: Final = RolloutConfig(
    timeout_seconds=120.0, unresponsive_seconds=30.0, max_attempts=3, retry_condition=["failed", "unresponsive"]
)
"""The limits of a game. A game is tried at most three times if the model was unavailable or the runner died."""


class NothingToLearnFrom(RuntimeError):
    """No game of a step, or of an exam, came to an end, so nothing can be learned from the games."""


def advantages(rewards: Mapping[str, float], groups: Mapping[str, str]) -> dict[str, float]:
    """Return the advantage of each rollout, by rollout id: (reward - mean) / (standard deviation + 0.0001).

    The mean and the standard deviation are computed from the rewards in the rollout's group. If a group has only one
    rollout, the advantage of the rollout is 0.

    Args:
        rewards: the rewards by rollout id.
        groups: the groups by rollout id.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for rollout_id in rewards:
        members[groups[rollout_id]].append(rollout_id)
    normalized: dict[str, float] = {}
    for group in members.values():
        values = [rewards[rollout_id] for rollout_id in group]
        mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        normalized |= {rollout_id: (rewards[rollout_id] - mean) / (spread + 1e-4) for rollout_id in group}
    return normalized


class Grpo(Algorithm):
    """Algorithm that trains a policy, and publishes each version of the policy.

    A run is one training; a store may contain many runs. If the store contains an unfinished run with the given name,
    the training continues this run. Games that were already played are not repeated. The algorithm learns from these
    games again in the same way, which leads to the same weights.

    The weights of each version are separate resources with the id `<run>/weights/<version>`. The resources for agents
    contain this id, the address of the proxy, and the name `policy@<version>`, by which agents request the model from
    the proxy.

    Args:
        run: the name of the run.
        course: the parameters of the training.
        on_step: function that is called with the result of each step.
    """

    def __init__(self, run: str, course: Course, on_step: Callable[[StepResult], None]) -> None:
        self.steps: list[StepResult] = []
        self.exams: list[Exam] = []
        self.models = course.models()
        self.size = 0
        self.plan = Plan(run, config=LIMITS)
        self.calls = 0
        self.batches = 0
        self.course = course
        self._on_step = on_step

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Train the policy. `train_dataset` contains one task for each secret; `val_dataset` is not used.

        Raises:
            NothingToLearnFrom: all games of a step or of an exam failed.
            ValueError: the trainer has no proxy.
        """
        del val_dataset
        proxy, course = self.get_llm_proxy(), self.course
        if proxy is None:
            raise ValueError("the agents call the policy through a proxy; give one as Trainer(llm_proxy=...)")
        policy = await self._first()
        self.size = policy.size
        learner = Learner(policy, course.learning)
        async with self._inference() as server:
            published = await self._newest()
            if published is not None:
                # Games that an earlier process left in the queue wait for a backend of the proxy.
                await self._publish(published, server, proxy)
            for number in range(course.steps):
                await self._store_weights(policy, number)
                if published is None or published < number:
                    await self._publish(number, server, proxy)
                if number == 0:
                    await self._examine(train_dataset or (), number)
                rollouts = await self._play(train_dataset or (), number)
                self.steps.append(await self._learn(learner, number, rollouts))
                result = self.steps[-1]
                await self.get_store().log_metrics(
                    number, {"entropy": result.entropy, "success_rate": result.success_rate, "calls": result.calls}
                )
                self._on_step(result)
            await self._store_weights(policy, course.steps)
            if course.examined:
                if published != course.steps:
                    await self._publish(course.steps, server, proxy)
                await self._examine(train_dataset or (), course.steps)
            self.calls, self.batches = server.calls, server.batches

    def _inference(self) -> LocalInference | VllmInference:
        url = self.course.pretrained.vllm if self.course.pretrained else None
        return LocalInference(self.models) if url is None else VllmInference(url)

    async def _first(self) -> TokenModel:
        """Return version 0 of the policy: the stored version if there is one, else a new policy."""
        weights = await self._stored_weights(0)
        return self.models.create(self.course.seed) if weights is None else self.models.load(weights.template)

    async def _newest(self) -> int | None:
        """Return the number of the newest version in the store, or None if the store contains no version."""
        newest: int | None = None
        for version in range(self.course.steps + 1):
            if await self._stored_weights(version) is None:
                break
            newest = version
        return newest

    async def _publish(self, version: int, server: Inference, proxy: LLMProxy) -> None:
        """Serve a version of the policy, and publish the resources with which agents call this version.

        The store must already contain the weights of the version.
        """
        weights = await self._stored_weights(version)
        assert weights is not None
        name = f"policy@{version}"
        proxy.update_backends([await server.serve(name, weights.template)])
        named = PromptTemplate(template=self.weights_id(version), engine="f-string")
        sampling = {"max_tokens": self.models.vocabulary.longest_answer, "temperature": 1.0}
        resources: NamedResources = {"policy": proxy.as_resource(sampling_parameters=sampling), "weights": named}
        await self.plan.publish(self.get_store(), resources, step=version)

    async def _store_weights(self, policy: TokenModel, version: int) -> None:
        """Store the weights of a version, unless the store already contains them."""
        if await self._stored_weights(version) is not None:
            return
        # A resource must be a model's address or a prompt, so weights are stored as the text of a prompt.
        weights_id = self.weights_id(version)
        weights = PromptTemplate(template=self.models.save(policy, weights_id), engine="f-string")
        await self.get_store().update_resources(weights_id, {"weights": weights})

    async def _stored_weights(self, version: int) -> PromptTemplate | None:
        resources = await self.get_store().get_resources_by_id(self.weights_id(version))
        return None if resources is None else cast("PromptTemplate", resources.resources["weights"])

    def weights_id(self, version: int) -> str:
        """Return the resources id of the weights of a version."""
        return f"{self.plan.run}/weights/{version}"

    async def _examine(self, tasks: Dataset[Any], version: int) -> None:
        """Let a version play the games of an exam, if the training has exams. The policy learns nothing from it."""
        if self.course.examined:
            rollouts = await self._play(tasks, version, "val")
            rewards = [rollout.reward or 0.0 for rollout in rollouts if rollout.status == "succeeded"]
            if not rewards:
                raise NothingToLearnFrom(f"none of the {len(rollouts)} games of the exam came to an end")
            self.exams.append(Exam(version, len(rewards), statistics.fmean(rewards)))

    async def _play(self, tasks: Dataset[Any], step: int, mode: Literal["train", "val"] = "train") -> list[Rollout]:
        """Enqueue the games of a step, wait until all have ended, and return the games in the order of the queue."""
        store, course = self.get_store(), self.course
        rollouts = await self.plan.enqueue(
            store,
            tasks,
            epoch=step,
            replicas=course.samples if mode == "train" else course.examined,
            mode=mode,
            resources_id=self.plan.resources_id(step),
            metadata={"seed": course.seed},
        )
        ended = {rollout.rollout_id: rollout async for rollout in self.plan.finished(store, rollouts)}
        return [ended[rollout.rollout_id] for rollout in rollouts]

    async def _learn(self, learner: Learner, number: int, rollouts: Sequence[Rollout]) -> StepResult:
        ended = [rollout for rollout in rollouts if rollout.status == "succeeded"]
        spans = await _spans(self.get_store(), [rollout.rollout_id for rollout in ended])
        # The games are processed in the same order each time, because the order affects the rounding of sums.
        triplets: list[Triplet] = [triplet for group in spans for triplet in self.get_adapter().adapt(group)]
        rewards = {rollout.rollout_id: rollout.reward for rollout in ended if rollout.reward is not None}
        if not triplets or not rewards:
            raise NothingToLearnFrom(f"none of the {len(rollouts)} games of step {number} came to an end")
        groups = {rollout.rollout_id: str((rollout.metadata or {})[GROUP_KEY]) for rollout in ended}
        advantage_by_rollout = advantages(rewards, groups)
        vocabulary = self.models.vocabulary
        batch = trajectories(triplets, vocabulary.pad, vocabulary.longest_prompt, vocabulary.longest_answer)
        entropy = learner.learn(
            batch, [advantage_by_rollout[triplets[row[0]].metadata["rollout_id"]] for row in batch.rows]
        )
        return StepResult(
            number=number,
            success_rate=statistics.fmean(rewards.values()),
            games=len(rollouts),
            failed=len(rollouts) - len(ended),
            calls=len(batch),
            entropy=entropy,
            first_games=self._first_games(ended, triplets),
        )

    def _first_games(self, rollouts: Sequence[Rollout], triplets: Sequence[Triplet]) -> dict[int, list[str]]:
        """Return, by secret, the guesses and hints of the first game with this secret. The last call contains them."""
        words_by_rollout: dict[str, list[str]] = {}
        for triplet in triplets:
            earlier_words = [message["content"] for message in triplet.prompt["raw_content"][1:]]
            answer = self.models.vocabulary.text(triplet.response["token_ids"])
            words_by_rollout[triplet.metadata["rollout_id"]] = [*earlier_words, answer]
        games: dict[int, list[str]] = {}
        for rollout in rollouts:
            games.setdefault(rollout.input["secret"], words_by_rollout.get(rollout.rollout_id, []))
        return games


async def _spans(store: Store, rollout_ids: Sequence[str]) -> list[Sequence[Span]]:
    """Return the spans of the latest attempt of each rollout, in the order of the given ids."""
    spans: dict[str, list[Span]] = {rollout_id: [] for rollout_id in rollout_ids}
    for start in range(0, len(rollout_ids), MAX_ROLLOUTS):
        for span in await store.query_spans(rollout_ids[start : start + MAX_ROLLOUTS], "latest"):
            spans[span.rollout_id].append(span)
    return list(spans.values())
