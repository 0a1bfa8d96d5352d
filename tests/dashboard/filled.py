"""A store with content for every page; each of its texts contains markup that pages must escape."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, Final

import orjson

from store.dashboard.request import segment
from store.dashboard.site import ROUTES
from store.db.dialect import Changes
from store.db.queries.groups import group_row
from store.db.tables.core import webhook_deliveries, webhooks
from store.models import (
    AttemptedRollout,
    AttemptError,
    Event,
    OtelResource,
    PromptTemplate,
    RunEvent,
    Span,
    TraceStatus,
)
from store.models.scanners import NewScan, NewScanner, ScanError
from store.sql.store import SQLStore
from store.webhooks.records import Delivery, Webhook
from tests.runs.trading_runs import auto_run, complete_rerun

HOSTILE: Final = (
    "<script>globalThis.hit = 1</script>"
    '"><img src=x onerror="globalThis.hit = 2" class=hit>'
    "'><svg onload='globalThis.hit = 3' class=hit></svg>"
    "</textarea></title></style></script><b class=hit>b</b>"
    "{{ 7 * 7 }}${7 * 7}javascript:globalThis.hit=4"
)
"""Were any of it markup, `globalThis.hit` would be set, or an element of the class `hit` be there."""

_PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE: Final = f"data:image/png;base64,{_PIXEL}"
"""A picture of one pixel."""
GROUP: Final = f"g/{HOSTILE}"
WORKER: Final = f"w?{HOSTILE}"
RESOURCES: Final = f"r#{HOSTILE}"


@dataclass(frozen=True, slots=True)
class Filled:
    """What there is, by what it is for."""

    rollout_id: str
    """With spans of every kind, two attempts and rewards."""
    sibling_id: str
    """Of the same group."""
    run_id: str
    """A pipeline, run again from a phase."""
    task: str
    """The hash of an input."""

    def ids(self) -> dict[str, str]:
        """Return what stands for the placeholders of paths."""
        return {
            "rollout_id": self.rollout_id,
            "group_id": GROUP,
            "resources_id": RESOURCES,
            "worker_id": WORKER,
            "span_id": f"{2:016x}",
            "key_id": "none",
            "webhook_id": "none",
            "task": self.task,
            "key": hashlib.sha256(IMAGE.encode()).hexdigest()[:16],
        }


async def fill(store: SQLStore) -> Filled:
    """Fill an empty store."""
    for text in (f"Answer: {{question}} {HOSTILE}", f"Answer well: {{question}} {HOSTILE}"):
        await store.update_resources(
            RESOURCES, {HOSTILE: PromptTemplate(resource_type="prompt_template", template=text, engine="f-string")}
        )
    members = [await _member(store, number) for number in range(4)]
    run = await auto_run(store, group=GROUP, question=HOSTILE)
    await store.runs.append_events(run.rollout_id, run.attempt.attempt_id, [_event()])
    await complete_rerun(store, run, "risk", "RIG", reason=HOSTILE)
    for number in range(3):
        await store.enqueue_rollout({HOSTILE: number}, metadata=_metadata(10 + number))
    await store.dequeue_rollout(worker_id=WORKER)
    await store.update_worker(WORKER, {HOSTILE: HOSTILE, "cpu": 0.5})
    await _add_webhook(store)
    await _scan(store)
    await store.log_metrics(1, {HOSTILE[:64]: 0.5})
    group = await store.core.look(partial(group_row, group_id=GROUP))
    assert group is not None
    return Filled(members[0], members[1], run.rollout_id, group.input_sha256)


async def _add_webhook(store: SQLStore) -> None:
    """Add a webhook with a failed message. A server accepts no such URL, but another program may write it."""
    scanner = f"scanner_rate/{HOSTILE}"
    names = [orjson.dumps({scanner: value}).decode() for value in ({"rollouts": 100}, 1)]
    webhook = Webhook("hook", f"https://{HOSTILE}", "whsec_", *names, created_at=1)
    body = orjson.dumps({HOSTILE: HOSTILE}).decode()
    message = Delivery("msg_1", "hook", HOSTILE, body, 1, "failed", 6, response_status=500, error=HOSTILE)
    session = await store.core.dialect.writer()
    await session.begin()
    inserts: dict[Any, list[Any]] = {webhooks: [astuple(webhook)], webhook_deliveries: [astuple(message)]}
    await session.write(Changes(inserts=inserts, upserts={}, deletes={}))
    await session.commit()
    await session.close()


async def _scan(store: SQLStore) -> None:
    """Record one error, and matches, of a scanner for the rollouts that have ended."""
    scanner = HOSTILE[:64]
    await store.scanners.add(
        NewScanner(name=scanner, version="v1", kind="regex", definition={HOSTILE: HOSTILE}, match_label="m")
    )
    results: list[NewScan] = []
    for number, attempt in enumerate(await store.scanners.unscanned(scanner, "v1")):
        fields: dict[str, Any] = {"is_match": True, "explanation": HOSTILE}
        if number == 0:
            fields = {"error": ScanError(type="Error", message=HOSTILE)}
        results.append(NewScan(**dict(attempt), **fields))
    await store.scanners.record(scanner, "v1", results)


def _metadata(number: int) -> dict[str, Any]:
    return {
        "rollbook.group": GROUP,
        "rollbook.step": number // 2,
        "rollbook.key": f"{number}{HOSTILE}",
        HOSTILE: HOSTILE,
    }


async def _member(store: SQLStore, number: int) -> str:
    asked = {"question": HOSTILE, HOSTILE: [HOSTILE, number]}
    rollout = await store.start_rollout(
        asked, mode="train", resources_id=RESOURCES, metadata=_metadata(number), worker_id=f"{WORKER}{number % 2}"
    )
    error = AttemptError(type=f"Error{HOSTILE}"[:200], message=HOSTILE)
    await store.add_many_spans(list(_spans(rollout, number)))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="failed", error=error)
    if number % 2 == 0:
        again = await store.start_attempt(rollout.rollout_id, WORKER)
        await store.add_many_spans(list(_spans(again, number + 1)))
        await store.update_attempt(rollout.rollout_id, again.attempt.attempt_id, status="succeeded")
    return rollout.rollout_id


def _spans(rollout: AttemptedRollout, number: int) -> Iterator[Span]:
    attempt_id, start = rollout.attempt.attempt_id, rollout.attempt.start_time
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": attempt_id, "trace_id": f"{number + 1:032x}"}
    root = f"{number + 1:016x}"
    resource = OtelResource(attributes={HOSTILE: HOSTILE}, schema_url=HOSTILE)

    def span(sequence: int, name: str, attributes: dict[str, Any], **fields: Any) -> Span:
        return Span.from_attributes(
            **ids,
            sequence_id=sequence,
            name=name,
            span_id=root if sequence == 1 else f"{number + 1:08x}{sequence:08x}",
            parent_id=None if sequence == 1 else root,
            start_time=start + 0.1 * sequence,
            end_time=start + 0.1 * sequence + (3 if sequence == 1 else 0.2),
            resource=resource,
            attributes=attributes,
            **fields,
        )

    yield span(1, f"agent {HOSTILE}", {HOSTILE: HOSTILE})
    yield span(2, "openai.chat.completion", _call(number))
    yield span(3, f"tool {HOSTILE}", {"gen_ai.tool.name": HOSTILE, "tool.input": HOSTILE, "tool.output": HOSTILE})
    failed = span(
        4, "step", {"exception.message": HOSTILE}, status=TraceStatus(status_code="ERROR", description=HOSTILE)
    )
    yield failed.model_copy(
        update={"events": [Event(name=HOSTILE, attributes={"exception.stacktrace": HOSTILE, HOSTILE: HOSTILE})]}
    )
    yield span(5, "agentlightning.message", {"agentlightning.message.body": HOSTILE})
    yield span(6, "agentlightning.object", {"agentlightning.object.type": HOSTILE, "agentlightning.object.json": "{}"})
    rewards = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.25 * number}
    rewards |= {"agentlightning.reward.1.name": HOSTILE, "agentlightning.reward.1.value": 1.0}
    yield span(7, "agentlightning.annotation", rewards)


_PARTS: Final = [
    {"type": "text", "text": HOSTILE},
    {"type": "image_url", "image_url": {"url": IMAGE}, "name": HOSTILE},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": HOSTILE}},
    {"type": "image_url", "image_url": {"url": f"https://example.invalid/{HOSTILE}"}},
]


def _call(number: int) -> dict[str, Any]:
    return {
        "gen_ai.request.model": HOSTILE,
        "gen_ai.response.model": HOSTILE,
        "gen_ai.response.id": f"resp-{number}",
        "gen_ai.usage.input_tokens": 12 + number,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": HOSTILE,
        "gen_ai.prompt.1.role": f"user{HOSTILE}",
        "gen_ai.prompt.1.content": f"{number} {HOSTILE}",
        "gen_ai.prompt.2.role": "user",
        "gen_ai.prompt.2.content": orjson.dumps(_PARTS).decode(),
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": HOSTILE,
        "gen_ai.completion.0.tool_calls.0.name": HOSTILE,
        "gen_ai.completion.0.tool_calls.0.arguments": HOSTILE,
        "gen_ai.completion.0.finish_reason": HOSTILE,
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": [4, 5],
    }


def _event() -> RunEvent:
    return RunEvent(
        kind="result", node_id=HOSTILE, scope=HOSTILE, agent=HOSTILE, status="error", service=HOSTILE, message=HOSTILE,
        prompt=HOSTILE, response=HOSTILE, error=HOSTILE, metrics={"model": HOSTILE, "tokens_in": 3},
    )  # fmt: skip


def page_paths() -> list[str]:
    """Return the path of every page, as its route has it: those that are added are tried without being named."""
    return sorted({route.path for route in ROUTES if route.method == "GET"})


def address(path: str, filled: Filled) -> str:
    """Return where a page of a filled store is, below its partition, with the parameters that it cannot do without.

    A placeholder that is new here is to be told what stands for it, in `Filled.ids`.
    """
    ids = filled.ids()
    if path.startswith("/ui/runs/"):
        ids["rollout_id"] = filled.run_id
    if "/media/" in path:
        ids["span_id"] = f"{2:08x}{2:08x}"
    url = re.sub(r"\{(\w+)\}", lambda name: segment(ids[name[1]]), path)
    if path == "/ui/cohorts":
        return f"{url}?a=step%3D0&a.group={segment(GROUP)}&b=step%3D1"
    return f"{url}?a={filled.rollout_id}&b={filled.sibling_id}" if path == "/ui/compare" else url
