"""The workload for all measured stores. Only the store and its types differ.

It imports only the standard library, because one of the stores is measured in another environment.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Any

SPANS_PER_LIFECYCLE = 8
CALLS_PER_LIFECYCLE = 3 + SPANS_PER_LIFECYCLE
INPUT = {"question": "How many primes lie between 100 and 200?", "seed": 7}

_VOCABULARY = (
    "answer approach because before believe between candidate compare compute consider context correct current"
    " decide detail different document equation evidence example expect explain factor final follow formula given"
    " however include instead integer known length likely matter method multiply number observe order original"
    " paragraph perhaps point possible previous problem product question reason remain report result return second"
    " several should simplify solution square state statement step subtract suggest summary therefore together total"
    " triangle under until value verify whether which without"
)
_WORDS = _VOCABULARY.split()
_dice = random.Random(20)


def _text(words: int) -> str:
    return " ".join(_dice.choices(_WORDS, k=words))


# Made before anything is timed: texts as a model's calls carry them, no two alike.
_PROMPTS = [_text(24) for _ in range(512)]
_COMPLETIONS = [_text(16) for _ in range(509)]


def span_fields(rollout_id: str, attempt_id: str, number: int, span_number: int) -> dict[str, Any]:
    """Return a span of 20 attributes as plain values, about 1,300 bytes of JSON; `span_number` makes its id."""
    start = 1_750_000_000.0 + number * 0.731
    return {
        "rollout_id": rollout_id,
        "attempt_id": attempt_id,
        "sequence_id": number,
        "trace_id": f"{span_number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128:032x}",
        "span_id": f"{span_number * 0x9E3779B97F4A7C15 % 2**64:016x}",
        "parent_id": None,
        "name": "chat gpt-4.1-mini",
        "status": {"status_code": "OK"},
        "attributes": {
            "gen_ai.system": "openai",
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "gpt-4.1-mini",
            "gen_ai.request.temperature": 0.7,
            "gen_ai.request.top_p": 0.95,
            "gen_ai.request.max_tokens": 1024,
            "gen_ai.response.model": "gpt-4.1-mini-2025-04-14",
            "gen_ai.response.id": f"chatcmpl-{span_number * 0x2545F4914F6CDD1D % 2**64:016x}",
            "gen_ai.response.finish_reason": "stop",
            "gen_ai.usage.input_tokens": 300 + span_number % 97,
            "gen_ai.usage.output_tokens": 60 + span_number % 41,
            "gen_ai.prompt": _PROMPTS[span_number % len(_PROMPTS)],
            "gen_ai.completion": _COMPLETIONS[span_number % len(_COMPLETIONS)],
            "server.address": "127.0.0.1",
            "server.port": 8000,
            "http.response.status_code": 200,
            "code.function": "solve",
            "code.lineno": 118,
            "agent.step": number,
            "agent.retry": False,
        },
        "events": [],
        "links": [],
        "start_time": start,
        "end_time": start + 0.613,
        "context": None,
        "parent": None,
        "resource": {"attributes": {"service.name": "solver"}, "schema_url": ""},
    }


def json_bytes(fields: list[dict[str, Any]]) -> int:
    """Return the size of values as JSON texts without blanks."""
    return sum(len(json.dumps(one, separators=(",", ":"))) for one in fields)


class Workload:
    """The calls of a training run, on a store with Agent-lightning's methods.

    Args:
        store: the store.
        span: the class of its spans.
    """

    def __init__(self, store: Any, span: Callable[..., Any]) -> None:
        self._store = store
        self._span = span
        self._numbers = itertools.count(1)
        self._prepared: list[list[Any]] = []

    async def lifecycle(self, worker: str, timed: Timings) -> None:
        """Enqueue a rollout, claim one, record its eight spans in a call each, end its attempt: eleven calls."""
        store = self._store
        await timed("enqueue", store.enqueue_rollout(INPUT))
        claimed = await timed("dequeue", store.dequeue_rollout(worker_id=worker))
        rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
        for number in range(1, SPANS_PER_LIFECYCLE + 1):
            span = self._span(**span_fields(rollout_id, attempt_id, number, next(self._numbers)))
            await timed("add_span", store.add_span(span))
        await timed("update_attempt", store.update_attempt(rollout_id, attempt_id, status="succeeded"))

    async def lifecycles(self, callers: int, seconds: float) -> dict[str, Any]:
        """Let callers run lifecycles one after another, all at once, for some seconds."""
        timed, done = Timings(), 0

        async def call(caller: int) -> None:
            nonlocal done
            while time.perf_counter() < end:
                await self.lifecycle(f"worker-{caller}", timed)
                done += 1

        begun, cpu = time.perf_counter(), time.process_time()
        end = begun + seconds
        await asyncio.gather(*(call(caller) for caller in range(callers)))
        took = time.perf_counter() - begun
        return {
            "count": done,
            "per_second": done / took,
            "cpu_ms": (time.process_time() - cpu) * 1000 / done,
            "latency": timed.percentiles(),
        }

    async def open_loop(self, rate: float, seconds: float) -> dict[str, Any]:
        """Start lifecycles at a steady rate, whether those before them have ended or not."""
        timed, running = Timings(), set[asyncio.Task[None]]()
        begun, count = time.perf_counter(), int(rate * seconds)
        for number in range(count):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            running.add(task := asyncio.create_task(self.lifecycle(f"worker-{number % 32}", timed)))
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        took = time.perf_counter() - begun
        return {"per_second": count / took, "latency": timed.percentiles(), "seconds": timed.all()}

    async def prepare_traces(self, traces: int, spans: int) -> int:
        """Claim attempts and make a trace for each, ready for `record_traces`; return their size as JSON."""
        self._prepared, size = [], 0
        for rollout_id, attempt_id in await self.claim(traces):
            fields = [
                span_fields(rollout_id, attempt_id, number, next(self._numbers)) for number in range(1, spans + 1)
            ]
            size += json_bytes(fields)
            self._prepared.append([self._span(**one) for one in fields])
        return size

    async def record_traces(self, callers: int) -> dict[str, Any]:
        """Record the prepared traces, each in one call, by some callers at once."""
        traces, self._prepared = iter(self._prepared), []
        spans = 0

        async def call() -> None:
            nonlocal spans
            for trace in traces:
                await self._store.add_many_spans(trace)
                spans += len(trace)

        begun, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(call() for _ in range(callers)))
        took = time.perf_counter() - begun
        return {"per_second": spans / took, "cpu_us": (time.process_time() - cpu) * 1e6 / spans, "spans": spans}

    async def claim(self, count: int) -> list[tuple[str, str]]:
        """Enqueue rollouts and claim them all; return their ids and those of their attempts."""
        await asyncio.gather(*(self._store.enqueue_rollout(INPUT) for _ in range(count)))
        claimed = await self._store.dequeue_many_rollouts(limit=count, worker_id="worker-0")
        return [(one.rollout_id, one.attempt.attempt_id) for one in claimed]

    async def await_ends(self, rollout_ids: list[str]) -> list[float]:
        """Wait for the end of one rollout after the other; return the instants at which each was known."""
        woken: list[float] = []
        for rollout_id in rollout_ids:
            (ended,) = await self._store.wait_for_rollouts(rollout_ids=[rollout_id], timeout=60)
            woken.append(time.perf_counter())
            assert ended.rollout_id == rollout_id
        return woken

    async def end_in_turn(self, claimed: list[tuple[str, str]]) -> list[float]:
        """End one rollout after the other, at no regular interval; return the instants just before each call."""
        called: list[float] = []
        for rollout_id, attempt_id in claimed:
            await asyncio.sleep(_dice.uniform(0.015, 0.03))
            called.append(time.perf_counter())
            await self._store.update_attempt(rollout_id, attempt_id, status="succeeded")
        return called

    async def wake(self, count: int) -> tuple[list[float], list[float]]:
        """End rollouts that are waited for in the same loop; return the instants of the calls and of the wake-ups."""
        claimed = await self.claim(count)
        called, woken = await asyncio.gather(
            self.end_in_turn(claimed), self.await_ends([rollout_id for rollout_id, _ in claimed])
        )
        return called, woken


class Timings:
    """How long each call took."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    async def __call__(self, name: str, call: Awaitable[Any]) -> Any:
        begun = time.perf_counter()
        result = await call
        self._seconds.setdefault(name, []).append(time.perf_counter() - begun)
        return result

    def all(self) -> list[float]:
        """Return every duration, in seconds."""
        return [second for taken in self._seconds.values() for second in taken]

    def percentiles(self) -> dict[str, dict[str, float]]:
        """Return p50, p99 and maximum of each kind of call, in milliseconds."""
        return {name: percentiles(taken) for name, taken in self._seconds.items()}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return p50, p99 and maximum of some durations, in milliseconds."""
    ordered = sorted(seconds)
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for name, share in shares.items()}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def max_rss_mib() -> float:
    """Return the most memory that this process, and the largest of its children that have ended, ever held, in MiB."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_maxrss for usage in used) / 1024
