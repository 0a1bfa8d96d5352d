"""A training with an LLM proxy is interrupted and killed: a resume finishes all rollouts and reports the full plan."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from store import open_store
from store.interface.store import Store
from store.models import AttemptedRollout
from store.training.algorithms.plan import Plan
from tests.conftest import SQLITE
from tests.llm_proxy.model_server import Asked, chats, model_server
from tests.torture import IS_TORTURE
from tests.training.execution.programs import Program, running
from tests.training.execution.resumed import RUN, main
from tests.training.stores import POSTGRES_IN_TORTURE

pytestmark = [pytest.mark.torture, pytest.mark.slow, pytest.mark.timeout(1800)]

TASKS = 1280 if IS_TORTURE else 32
STRATEGY = "cs" if IS_TORTURE else "shm"
ANSWER_SECONDS = 0.05 if IS_TORTURE else 0.3
"""The time that the model takes for an answer, so that calls are in flight when the training ends."""


def training(url: str, model: str, log: Path) -> AbstractContextManager[Program]:
    """Run the training; at the end of the block, none of its processes is left."""
    return running(main, STRATEGY, url, str(TASKS), model, log=log)


async def ends(store: Store, part: float) -> None:
    """Wait until a part of the rollouts has succeeded."""
    # Another process changes the store, so there is no event to wait for.
    while (await store.query_rollouts(status_in=["succeeded"], limit=0)).total < part * TASKS:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES_IN_TORTURE], indirect=True)
async def test_resumed_training_with_a_proxy_finishes_all_rollouts_in_one_report(
    durable_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "training.log"

    async def slowly(asked: Asked) -> Response | None:
        await asyncio.sleep(ANSWER_SECONDS)
        return await chats()(asked)

    async with model_server() as model, await open_store(durable_url) as store:
        model.will(slowly)
        with training(durable_url, model.url, log) as first:
            await ends(store, 0.2)
            first.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(first.exit_code, 60) == 130, log.read_text()
        assert (await store.query_rollouts(status_in=["queuing"], limit=0)).total > 0
        with training(durable_url, model.url, log) as second:
            await ends(store, 0.6)
            second.kill()
            assert await asyncio.to_thread(second.exit_code, 60) == -signal.SIGKILL
        with training(durable_url, model.url, log) as third:
            assert await asyncio.to_thread(third.exit_code, 900) == 0, log.read_text()
        await check(store, json.loads(log.read_text().splitlines()[-1]))


async def check(store: Store, report: dict[str, Any]) -> None:
    """Check that each rollout succeeded once, at one of three addresses, and that the report counts all of them."""
    rollouts = await store.query_rollouts()
    keys = Counter((rollout.metadata or {})["rollbook.key"] for rollout in rollouts)
    assert keys == Counter(item.key for item in Plan(RUN, seed=1).planned(range(TASKS)))
    assert Counter(rollout.status for rollout in rollouts) == {"succeeded": TASKS}
    for rollout in rollouts:
        assert isinstance(rollout, AttemptedRollout)
        assert rollout.reward == float(rollout.input)
        spans = await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id)
        assert sum(span.name.startswith("openai.chat") for span in spans) == 1, [span.name for span in spans]
    published = await store.get_resources_by_id(f"{RUN}/0")
    assert published is not None
    assert published.version == 3
    mean = (TASKS - 1) / 2
    assert report["rows"] == [["train", 0, f"{RUN}/0 v1", TASKS, mean]]
    assert (report["rollouts"], report["drops"]) == (TASKS, {})
    assert 0.6 * TASKS <= report["earlier"] < TASKS
    assert (await store.log.verify()).ok
