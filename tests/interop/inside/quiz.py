"""An agent that answers questions without an LLM, and an algorithm that selects the better prompt."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio
from typing import Any

from agentlightning import Algorithm, LitAgent, emit_message, emit_reward
from agentlightning.emitter import find_final_reward
from agentlightning.store.base import LightningStore
from agentlightning.types import PromptTemplate, Rollout, RolloutConfig
from opentelemetry import trace

PROMPTS = {"curt": "{question}", "polite": "Please answer: {question}"}
TRACED = [
    *("openai.chat.completion", "agentlightning.message", "agentlightning.annotation", "plan"),
    "agentlightning.annotation",
]
"""The spans of one answer, in the order they end; the last is the reward that was returned."""
RETRIED = RolloutConfig(max_attempts=2, retry_condition=["failed"])


def prompt(template: str) -> PromptTemplate:
    return PromptTemplate(template=template, engine="f-string")


class Quiz(LitAgent[dict[str, Any]]):
    """Asks its model, says what it thinks, and is worth more for a polite prompt.

    A task has a `question`; with `fails` it fails that many attempts.
    """

    def rollout(self, task: dict[str, Any], resources: dict[str, Any], rollout: Any) -> float:
        asked = resources["prompt"].format(question=task["question"])
        tracer = trace.get_tracer("quiz")
        with tracer.start_as_current_span("plan") as plan:
            plan.set_attribute("question", task["question"])
            with tracer.start_as_current_span("openai.chat.completion") as call:
                call.set_attributes(_as_a_model_call(asked))
            emit_message("that was easy")
            emit_reward(0.25)
        if rollout.attempt.sequence_id <= task.get("fails", 0):
            raise RuntimeError("the agent lost its way")
        return 1.0 if asked.startswith("Please") else 0.5


def _as_a_model_call(asked: str) -> dict[str, Any]:
    return {
        "gen_ai.system": "openai",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": asked,
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "42",
        "prompt_token_ids": [1, 2, len(asked)],
        "response_token_ids": [4, 2],
    }


class BetterPrompt(Algorithm):
    """Has every question answered under each prompt, in one epoch, and publishes the prompt with the most reward.

    What it found is written into the resources it publishes last, under the name `best`.
    """

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        scores = {name: await self._score(store, template, train_dataset) for name, template in PROMPTS.items()}
        best = max(scores, key=lambda name: scores[name])
        await store.add_resources({"prompt": prompt(PROMPTS[best]), "best": prompt(f"{best} {scores[best]}")})

    async def _score(self, store: LightningStore, template: str, questions: list[dict[str, Any]]) -> float:
        resources = await store.add_resources({"prompt": prompt(template)})
        enqueued = [
            await store.enqueue_rollout(
                question,
                mode="train",
                resources_id=resources.resources_id,
                config=RETRIED,
                metadata={"template": template},
            )
            for question in questions
        ]
        ended = await _ended(store, [rollout.rollout_id for rollout in enqueued])
        assert {rollout.status for rollout in ended} == {"succeeded"}, ended
        rewards = [find_final_reward(await store.query_spans(rollout.rollout_id, "latest")) for rollout in ended]
        assert None not in rewards, rewards
        return sum(reward or 0.0 for reward in rewards)


async def _ended(store: LightningStore, rollout_ids: list[str]) -> list[Rollout]:
    """Poll, as Agent-lightning's own algorithms do, until all have ended."""
    while True:
        ended = await store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=0.0)
        if len(ended) == len(rollout_ids):
            return list(ended)
        await asyncio.sleep(0.05)
