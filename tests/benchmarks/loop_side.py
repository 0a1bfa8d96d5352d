"""The measured training loop, in its own process."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from store import open_store
from store.interface.store import Store
from store.models import EnqueueRolloutRequest, NamedResources, PromptTemplate
from store.sql.store import SQLStore
from store.training import Runner, Tracer, rollout
from store.training.tracing.scope import entered
from tests.benchmarks.protocol import serve
from tests.benchmarks.workload import cpu_seconds

_ATTRIBUTES = {"gen_ai.system": "openai", "gen_ai.request.model": "tiny", "gen_ai.usage.total_tokens": 42}
_LONGEST_SECONDS = 120
_RESOURCES: NamedResources = {"prompt": PromptTemplate(template="{question}", engine="f-string")}


@rollout
def _idle_agent(task: Any, prompt_template: PromptTemplate) -> float:
    del prompt_template
    return float(task)


class Loop:
    """Commands."""

    async def spans(self, url: str, count: int, rounds: int) -> list[dict[str, float]]:
        """Return, for each round, what a span costs the agent's thread in µs: with the bare SDK, and recorded by us.

        `bare` and `ours` are CPU time of the thread, `bare_wall` and `ours_wall` the time that passed.
        """
        store = await open_store(url)
        try:
            started = await store.start_rollout(1)
            ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
            return [await self._round(store, ids, count) for _ in range(1 + rounds)][1:]
        finally:
            await store.close()

    async def _round(self, store: Store, ids: dict[str, str], count: int) -> dict[str, float]:
        bare = _cost(TracerProvider(shutdown_on_exit=False).get_tracer("bare"), count)
        tracer = Tracer(openai=False)
        scope = tracer.open_scope(store=store, **ids)
        with entered(scope), tracer.root_span(scope):
            cpu, wall = _cost(scope.tracer, count)
        recorded = await tracer.close_scope(scope)
        assert len(recorded.spans) == count + 1, recorded
        return {"bare": bare[0], "bare_wall": bare[1], "ours": cpu, "ours_wall": wall}

    async def rollouts(self, url: str, runners: int, count: int) -> dict[str, float]:
        """Run so many rollouts, so many at once; return how many a second, and what one costs in CPU and commits.

        Timed from the first that is enqueued to the last that has ended, with a runner that is there already.
        """
        store = await open_store(url)
        assert isinstance(store, SQLStore)
        await store.add_resources(_RESOURCES)
        stop = threading.Event()
        runner = Runner[Any](Tracer(openai=False), concurrency=runners)
        with runner.run_context(agent=_idle_agent, store=store):
            running = asyncio.create_task(runner.iter(event=stop))
            try:
                await _done(store, 2 * runners)
                commits = store.core.writer_statistics.commits
                begun, spent = time.perf_counter(), cpu_seconds()
                await _done(store, count)
                seconds, spent = time.perf_counter() - begun, cpu_seconds() - spent
                commits = store.core.writer_statistics.commits - commits
            finally:
                stop.set()
                await running
        await store.close()
        return {"per_second": count / seconds, "cpu_ms": spent * 1000 / count, "commits": commits / count}


async def _done(store: Store, count: int) -> None:
    tasks = [EnqueueRolloutRequest(input=number, mode="train") for number in range(count)]
    rollout_ids = [rollout.rollout_id for rollout in await store.enqueue_many_rollouts(tasks)]
    ended = await store.wait_for_rollouts(rollout_ids, timeout=_LONGEST_SECONDS)
    assert [rollout.status for rollout in ended] == ["succeeded"] * count


def _cost(tracer: trace.Tracer, count: int) -> tuple[float, float]:
    """Return what a span costs: CPU time of this thread, and time, in µs."""
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(count):
        with tracer.start_as_current_span("openai.chat.completion") as span:
            span.set_attributes(_ATTRIBUTES)
    return (time.thread_time() - cpu) * 1e6 / count, (time.perf_counter() - wall) * 1e6 / count


if __name__ == "__main__":
    serve(Loop())
