"""Agent-lightning's training loop: its runner and trainer on its store in memory, in its own environment."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false
# Its packages are not installed beside the tests.

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
from importlib.metadata import version
from typing import Any

from agentlightning import Algorithm, LitAgentRunner, OtelTracer, PromptTemplate, Trainer, rollout
from agentlightning.store.memory import InMemoryLightningStore

from tests.benchmarks.protocol import serve
from tests.postgres import free_port

_RESOURCES = {"prompt": PromptTemplate(template="{question}", engine="f-string")}
_OPEN = ["queuing", "requeuing", "preparing", "running"]
_POLL: dict[str, float] = {"poll_interval": 0.01, "interval_jitter": 0.0, "heartbeat_interval": 10.0}


@rollout
def _idle_agent(task: Any, prompt_template: PromptTemplate) -> float:
    del prompt_template
    return float(task)


class _Measuring(Algorithm):
    """Has rollouts done, and says how fast, once every runner has had some to begin with."""

    def __init__(self, runners: int, count: int) -> None:
        super().__init__()
        self._runners = runners
        self._count = count
        self.per_second = 0.0

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        del train_dataset, val_dataset
        store = self.get_store()
        await store.add_resources(_RESOURCES)
        # Its runners are there seconds after its algorithm.
        while len(await store.query_workers()) < self._runners:
            for number in range(self._runners):
                await store.enqueue_rollout(number, mode="train")
            await self._drained(store)
        before = len(await store.query_rollouts())
        begun = time.perf_counter()
        for number in range(self._count):
            await store.enqueue_rollout(number, mode="train")
        await self._drained(store)
        self.per_second = self._count / (time.perf_counter() - begun)
        assert len(await store.query_rollouts(status=["succeeded"])) == before + self._count

    async def _drained(self, store: Any) -> None:
        # Its wait_for_rollouts does not wait behind its server.
        while await store.query_rollouts(status=_OPEN, limit=1):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _train(runners: int, count: int, answer: Any) -> None:
    algorithm = _Measuring(runners, count)
    tracer = OtelTracer()
    strategy = {"type": "cs", "n_runners": runners, "server_port": free_port(), "server_host": "127.0.0.1"}
    runner = LitAgentRunner(tracer, **_POLL)
    trainer = Trainer(
        algorithm=algorithm, store=InMemoryLightningStore(), strategy=strategy, tracer=tracer, runner=runner
    )
    trainer.fit(_idle_agent)
    answer.send({"per_second": algorithm.per_second})


class PeerLoop:
    """Commands."""

    def __init__(self) -> None:
        logging.disable(logging.WARNING)
        self._tracer = OtelTracer()

    def hello(self) -> str:
        return version("agentlightning")

    async def alone(self, count: int) -> dict[str, float]:
        """Run so many rollouts with one runner on the store in the same process, with nothing between them."""
        store = InMemoryLightningStore()
        await store.add_resources(_RESOURCES)
        runner = LitAgentRunner(self._tracer, max_rollouts=count, **_POLL)
        with runner.run_context(agent=_idle_agent, store=store, worker_id=0):
            for number in range(count):
                await store.enqueue_rollout(number, mode="train")
            begun = time.perf_counter()
            await runner.iter()
            return {"per_second": count / (time.perf_counter() - begun)}

    def trained(self, runners: int, count: int) -> dict[str, float]:
        """Run so many rollouts with its trainer and so many runners, each a process, and its server between them."""
        # In a process of its own, since its tracer and its server cannot be set up twice.
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        process = multiprocessing.get_context("fork").Process(target=_train, args=(runners, count, theirs))
        process.start()
        theirs.close()
        try:
            answer: dict[str, float] = ours.recv()
        finally:
            process.join(60)
        return answer


if __name__ == "__main__":
    serve(PeerLoop())
