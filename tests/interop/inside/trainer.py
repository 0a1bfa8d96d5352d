"""A training with Agent-lightning's trainer: an algorithm, runners in processes or threads, and an agent.

`--store client` takes Agent-lightning's own client to the server at `--url`; `--store rollbook` opens the database at
`--url` in process. Everything else is Agent-lightning's, and its environment variables mean what they mean there.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import argparse
import asyncio
import json
import os
from functools import partial
from typing import Any

from agentlightning import LightningStoreClient, LitAgentRunner, OtelTracer, Trainer
from agentlightning.algorithm.fast import Baseline
from agentlightning.emitter import find_final_reward
from agentlightning.store.base import LightningStore

from tests.interop.inside.claims import stay_on_this_machine
from tests.interop.inside.quiz import BetterPrompt, Quiz, prompt

QUESTIONS: list[dict[str, Any]] = [
    *({"question": f"{number} + {number}?"} for number in range(4)),
    {"question": "and why?", "fails": 1},
]
ROLLOUTS = 2 * len(QUESTIONS)
"""Each question under each prompt."""


def _store(kind: str, url: str) -> LightningStore:
    if kind == "client":
        return LightningStoreClient(url)
    from store.integrations.agentlightning import RollbookStore

    return RollbookStore(url)


async def _prefers_the_better_prompt(store: LightningStore) -> None:
    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest.resources["best"].template == "polite 5.0"
    rollouts = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=ROLLOUTS)
    assert len(rollouts) == ROLLOUTS
    for rollout in rollouts:
        assert (rollout.status, rollout.mode) == ("succeeded", "train")
        assert rollout.attempt.sequence_id == 1 + rollout.input.get("fails", 0)
        spans = await store.query_spans(rollout.rollout_id)
        assert [span.sequence_id for span in spans] == list(range(1, 6 + 4 * rollout.input.get("fails", 0)))
        assert {span.attempt_id for span in spans[-5:]} == {rollout.attempt.attempt_id}
    workers = await store.query_workers(worker_id_contains="Worker-")
    assert {rollout.attempt.worker_id for rollout in rollouts} <= {worker.worker_id for worker in workers}


async def _every_question_was_answered(store: LightningStore) -> None:
    rollouts = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=4)
    assert sorted((rollout.input["question"], rollout.mode) for rollout in rollouts) == [
        *(("0 + 0?", "train"), ("1 + 1?", "train"), ("2 + 2?", "val"), ("3 + 3?", "val")),
    ]
    for rollout in rollouts:
        assert rollout.status == "succeeded"
        assert find_final_reward(await store.query_spans(rollout.rollout_id, "latest")) == 1.0


async def _is_proven(store: Any) -> None:
    """Check that the database is what its log says, and that the log tells the story of each rollout."""
    opened = await store.rollbook()
    report = await opened.log.verify()
    assert report.ok, report
    (rollout, *_) = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=1)
    types = [event.type for event in await opened.log.history(rollout.rollout_id)]
    assert types[0] == "rollout.enqueued"
    assert types.count("span.recorded") == len(await store.query_spans(rollout.rollout_id))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--store", choices=["client", "rollbook"], required=True)
    parser.add_argument("--strategy", type=json.loads, default={"type": "cs"})
    parser.add_argument("--algorithm", choices=["better-prompt", "baseline"], default="better-prompt")
    parser.add_argument("--max-rollouts", type=int)
    options = parser.parse_args()
    tracer = OtelTracer()
    algorithm = {"better-prompt": BetterPrompt, "baseline": partial(Baseline, polling_interval=0.1)}
    trainer = Trainer(
        algorithm=algorithm[options.algorithm](),
        store=_store(options.store, options.url),
        strategy=options.strategy,
        tracer=tracer,
        runner=LitAgentRunner(tracer, max_rollouts=options.max_rollouts, poll_interval=0.1, interval_jitter=0.02),
        initial_resources={"prompt": prompt("Please answer: {question}")},
    )
    if options.algorithm == "baseline":
        trainer.fit(Quiz(), train_dataset=QUESTIONS[:2], val_dataset=QUESTIONS[2:4])
    else:
        trainer.fit(Quiz(), train_dataset=QUESTIONS)
    # A runner of its own ends before the run does.
    if os.environ.get("AGL_CURRENT_ROLE") != "runner":
        asyncio.run(_check(options))


async def _check(options: argparse.Namespace) -> None:
    store: Any = _store(options.store, options.url)
    try:
        if options.algorithm == "better-prompt":
            await _prefers_the_better_prompt(store)
        if options.algorithm == "baseline":
            await _every_question_was_answered(store)
        if options.store == "rollbook":
            await _is_proven(store)
    finally:
        await store.close()


if __name__ == "__main__":
    stay_on_this_machine()
    main()
