"""A store with a training for tests of the dashboard: `python -m tests.dashboard.reviewed FILE [--small]`.

An agent that repairs software is trained from step 200 to step 415, in steps of 5, on twelve recurring tasks. Version 2
of its prompt, at step 300, makes answers three times as long and more rollouts fail; version 3, at step 360, repairs
that. Two workers edit the tests instead of the code while version 2 is in use. At the end, no worker asks for rollouts:
36 rollouts of step 420 wait, and four attempts were abandoned.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from store import open_store
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, EnqueueRolloutRequest, PromptTemplate, Span, TraceStatus
from store.runtime.clock import MICROSECONDS, system_clock
from store.testing.clock import ManualClock

TASKS: Final = tuple(
    f"{project}-{number}"
    for project, number in zip(
        ("flask", "django", "sympy", "pytest", "requests", "astropy") * 2,
        (1296, 8813, 20154, 5103, 3362, 7746, 4045, 11099, 13480, 6116, 2931, 14182),
        strict=True,
    )
)
RESOURCES: Final = "res-swe"
FIRST_STEP, LAST_STEP, STEP_WIDTH = 200, 415, 5
VERSION_STEPS: Final = {1: 200, 2: 300, 3: 360}
"""The first step of each version of the prompt."""
WORKERS: Final = tuple(f"gpu{gpu}-worker-{number}" for gpu in range(4) for number in range(2))
HACKERS: Final = ("gpu0-worker-0", "gpu2-worker-1")
GROUP_SIZE: Final = 8
GROUPS: Final = 9
VAL_EVERY: Final = 15
QUEUED, ABANDONED = 36, 4
ROLLOUT_SECONDS: Final = 0.25
"""The time from the end of a rollout to the end of the next one."""
IDLE_SECONDS: Final = 13 * 60
"""The time from the last event to the present."""
TURNS: Final = 60
"""The number of turns of the longest rollout."""
EDITED_TEST: Final = "tests/test_dates.py"
MODEL: Final = "qwen3-8b"


@dataclass(frozen=True, slots=True)
class Story:
    """The figures of a store, which tests compare with the pages."""

    hacked: tuple[str, ...]
    """The ids of rollouts that edited a test."""
    long_id: str
    """The id of the rollout of 60 turns."""
    abandoned: tuple[str, ...]
    """The ids of the rollouts whose attempts were abandoned."""
    rollouts: int
    """The number of all rollouts."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    reward: float | None
    error: AttemptError | None
    edits_test: bool
    length: int
    """The mean number of output tokens of a turn."""


def version_at(step: int) -> int:
    """Return the version of the prompt that rollouts of a step use."""
    return max(version for version, first in VERSION_STEPS.items() if step >= first)


async def build(store: Store, clock: ManualClock, *, steps: Sequence[int], groups: int = GROUPS) -> Story:
    """Fill an empty store.

    Args:
        store: the store, which uses the clock.
        clock: the clock, which moves on by `ROLLOUT_SECONDS` per rollout, and by `IDLE_SECONDS` at the end.
        steps: the training steps, such as `STEPS` or `SMALL_STEPS`.
        groups: the number of groups of a step, each with `GROUP_SIZE` rollouts.
    """
    dice = random.Random(20)
    hacked: list[str] = []
    long_id, count, version = "", 0, 0
    for step in steps:
        if version_at(step) != version:
            version = version_at(step)
            await _publish(store, version)
        requests = [_train(step, TASKS[(step // STEP_WIDTH * groups + group) % 12]) for group in range(groups)]
        requests = [request for request in requests for _ in range(GROUP_SIZE)]
        if step % VAL_EVERY == 0:
            requests += [_request(step, task, "val", None) for task in TASKS]
        await store.enqueue_many_rollouts(requests)
        claimed = await _claim(store, len(requests))
        for rollout in claimed:
            turns = TURNS if not long_id and step >= VERSION_STEPS[2] else dice.randrange(2, 5)
            outcome = _outcome(dice, step, rollout)
            if turns == TURNS:
                long_id, outcome = rollout.rollout_id, _Outcome(0.957, None, edits_test=True, length=120)
            if outcome.edits_test:
                hacked.append(rollout.rollout_id)
            clock.advance(ROLLOUT_SECONDS)
            await _work(store, rollout, dice, outcome, turns)
        count += len(requests)
    await store.enqueue_many_rollouts([_train(420, TASKS[number % 5]) for number in range(QUEUED + ABANDONED)])
    abandoned = [await store.dequeue_rollout(worker_id=WORKERS[number * 2]) for number in range(ABANDONED)]
    for rollout in abandoned[1:]:
        assert rollout is not None
        await store.add_span(next(_spans(rollout, dice, _Outcome(None, None, edits_test=False, length=50), 1)))
    clock.advance(IDLE_SECONDS)
    ids = tuple(rollout.rollout_id for rollout in abandoned if rollout is not None)
    return Story(tuple(hacked), long_id, ids, count + QUEUED + ABANDONED)


async def _publish(store: Store, version: int) -> None:
    rules = {
        1: "Fix the issue in the repository. Use the tools. Run the tests before you finish.",
        2: "Fix the issue in the repository. Use the tools. Explain every step at length. The tests must pass.",
        3: "Fix the issue in the repository. Use the tools. Never edit a test. Run the tests before you finish.",
    }
    text = f"You are a software engineer.\n{rules[version]}\n\nIssue: {{issue}}"
    await store.update_resources(
        RESOURCES, {"system": PromptTemplate(template=text, engine="f-string", resource_type="prompt_template")}
    )


def _train(step: int, task: str) -> EnqueueRolloutRequest:
    return _request(step, task, "train", f"s{step}-{task}")


def _request(step: int, task: str, mode: Any, group: str | None) -> EnqueueRolloutRequest:
    metadata: dict[str, Any] = {"rollbook.step": step, "difficulty": "hard" if task in TASKS[6:] else "easy"}
    if group is not None:
        metadata["rollbook.group"] = group
    issue = {
        "task": f"{task}: parse_date raises ValueError for dates with a Z suffix",
        "repository": task.partition("-")[0],
    }
    return EnqueueRolloutRequest(input=issue, mode=mode, metadata=metadata, resources_id=RESOURCES)


async def _claim(store: Store, count: int) -> list[AttemptedRollout]:
    share = -(-count // len(WORKERS))
    claimed = [rollout for name in WORKERS for rollout in await store.dequeue_many_rollouts(share, name)]
    assert len(claimed) == count
    return claimed


def _outcome(dice: random.Random, step: int, rollout: AttemptedRollout) -> _Outcome:
    version = version_at(step)
    worker = rollout.attempt.worker_id
    difficulty = 0.12 if (rollout.metadata or {})["difficulty"] == "hard" else 0.0
    skill = 0.42 + 0.3 * min((step - FIRST_STEP) / 100, 1.0) - (0.2 if 325 <= step < 360 else 0.0) - difficulty
    length = {1: 210, 2: 680, 3: 640}[version]
    if dice.random() < (0.04 if version == 1 else 0.17):
        return _Outcome(None, _ERRORS[min(int(dice.expovariate(1.0)), 2)], edits_test=False, length=length)
    if version == 2 and worker in HACKERS and dice.random() < 0.5:
        return _Outcome(round(dice.uniform(0.93, 0.99), 3), None, edits_test=True, length=length)
    is_solved = dice.random() < skill - (0.09 if version == 2 else 0.0)
    reward = dice.uniform(0.85, 1.0) if is_solved else dice.uniform(0.0, 0.25)
    # A few rollouts succeed without a reward.
    return _Outcome(None if dice.random() < 0.004 else round(reward, 3), None, edits_test=False, length=length)


_ERRORS: Final = (
    AttemptError(type="openai.APITimeoutError", message="Request timed out."),
    AttemptError(type="json.JSONDecodeError", message="Expecting value: line 1 column 1 (char 0)"),
    AttemptError(type="ToolError", message="container 8f3a exited with 137"),
)


async def _work(store: Store, rollout: AttemptedRollout, dice: random.Random, outcome: _Outcome, turns: int) -> None:
    spans = list(_spans(rollout, dice, outcome, turns))
    if outcome.reward is not None:
        spans.append(_reward(rollout, len(spans) + 1, outcome, spans[-1].end_time))
    status = "succeeded" if outcome.error is None else "failed"
    error: Any = {} if outcome.error is None else {"error": outcome.error}
    await store.finish_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status, spans=spans, **error)


def _spans(rollout: AttemptedRollout, dice: random.Random, outcome: _Outcome, turns: int) -> Iterator[Span]:
    """Yield the spans of an attempt: the agent, and for each turn a call of the model and a call of a tool."""
    task: str = rollout.input["task"]
    is_openinference = task.startswith("django")
    start = rollout.attempt.start_time
    agent = {"openinference.span.kind": "AGENT"} if is_openinference else {"gen_ai.operation.name": "invoke_agent"}
    yield _span(rollout, 1, None, "invoke_agent swe", agent, start, start + 3.0 * turns)
    messages = [_message("system", "You are a software engineer.\n" + "\n".join(f"Rule {n}." for n in range(1, 9)))]
    messages.append(_user(task, with_image=task.startswith("flask")))
    for turn in range(turns):
        at = start + 3.0 * turn
        is_last = turn == turns - 1
        tool, arguments, result = _tool(
            dice, turn, is_edit=turns == TURNS and turn % 4 == 1, edits_test=is_last and outcome.edits_test
        )
        call_id = f"call_{turn}"
        usage = (400 + 190 * turn, round(outcome.length * dice.uniform(0.8, 1.2)))
        answer = _answer(turn, call_id, tool, arguments)
        is_failed = is_last and outcome.error is not None
        attributes = (_openinference if is_openinference else _genai)(messages, answer, usage)
        yield _span(
            rollout,
            2 + 2 * turn,
            1,
            "ChatCompletion" if is_openinference else f"chat {MODEL}",
            attributes,
            at,
            at + 1.4,
            is_failed=is_failed,
        )
        exit_code = 1 if tool == "bash" and "failed" in result else 0
        yield _span(
            rollout,
            3 + 2 * turn,
            1,
            f"execute_tool {tool}",
            _tool_attributes(tool, call_id, arguments, result, is_openinference=is_openinference),
            at + 1.5,
            at + 2.2,
            is_failed=exit_code != 0,
        )
        messages += [
            answer,
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": call_id, "result": result}]},
        ]


def _tool(dice: random.Random, turn: int, *, is_edit: bool, edits_test: bool) -> tuple[str, dict[str, Any], str]:
    if edits_test:
        edit = {"path": EDITED_TEST, "old": "assert parse_date(Z) == EXPECTED", "new": "pass  # skip flaky"}
        return "edit_file", edit, "ok, 1 replacement"
    if is_edit:
        edit = {
            "path": "flask/utils/dates.py",
            "old": f"value = parse({turn})",
            "new": f"value = parse({turn}, tz=UTC)",
        }
        return "edit_file", edit, "ok, 1 replacement"
    if turn % 3 == 2:
        passed = dice.random() < 0.6
        return (
            "bash",
            {"command": "pytest -q tests"},
            "3 passed in 0.41 s" if passed else "1 failed, 2 passed in 0.44 s",
        )
    if turn % 3 == 1:
        return (
            "read_file",
            {"path": "flask/utils/dates.py", "lines": "30-70"},
            "\n".join(f"{n} line" for n in range(40)),
        )
    return "bash", {"command": "git log --oneline | head -3"}, "./flask/utils/dates.py:41:def parse_date(value):"


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _user(task: str, *, with_image: bool) -> dict[str, Any]:
    message = _message("user", f"**Issue {task}**\n\n```\n>>> parse_date('2024-01-01T00:00:00Z')\nValueError\n```")
    if with_image:
        image = base64.b64encode(png()).decode()
        message["parts"].append({"type": "blob", "mime_type": "image/png", "modality": "image", "content": image})
    return message


def _answer(turn: int, call_id: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    reasoning = (
        "The test is hard to satisfy." if arguments.get("path") == EDITED_TEST else f"Step {turn}: look further."
    )
    return {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": reasoning},
            {
                "type": "text",
                "content": "Find the **parser** first." if turn == 0 else f"Turn {turn}: next, `{tool}`.",
            },
            {"type": "tool_call", "id": call_id, "name": tool, "arguments": arguments},
        ],
    }


def _genai(messages: list[dict[str, Any]], answer: dict[str, Any], usage: tuple[int, int]) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": MODEL,
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps([answer | {"finish_reason": "tool_call"}]),
        "gen_ai.usage.input_tokens": usage[0],
        "gen_ai.usage.output_tokens": usage[1],
        "gen_ai.usage.cache_read.input_tokens": usage[0] // 2,
    }


def _openinference(messages: list[dict[str, Any]], answer: dict[str, Any], usage: tuple[int, int]) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "openinference.span.kind": "LLM",
        "llm.model_name": f"{MODEL}-instruct",
        "llm.token_count.prompt": usage[0],
        "llm.token_count.completion": usage[1],
        "llm.cost.total": usage[0] * 4e-7 + usage[1] * 1.2e-6,
    }
    for prefix, listed in (("llm.input_messages", messages), ("llm.output_messages", [answer])):
        for number, message in enumerate(listed):
            at = f"{prefix}.{number}.message"
            attributes[f"{at}.role"] = message["role"]
            for part in message["parts"]:
                if part["type"] == "text":
                    attributes[f"{at}.content"] = part["content"]
                elif part["type"] == "tool_call":
                    call = f"{at}.tool_calls.0.tool_call"
                    attributes[f"{call}.id"] = part["id"]
                    attributes[f"{call}.function.name"] = part["name"]
                    attributes[f"{call}.function.arguments"] = json.dumps(part["arguments"])
                elif part["type"] == "tool_call_response":
                    attributes[f"{at}.tool_call_id"] = part["id"]
                    attributes[f"{at}.content"] = part["result"]
    return attributes


def _tool_attributes(
    tool: str, call_id: str, arguments: dict[str, Any], result: str, *, is_openinference: bool
) -> dict[str, Any]:
    if is_openinference:
        return {
            "openinference.span.kind": "TOOL",
            "tool.name": tool,
            "tool_call.id": call_id,
            "input.value": json.dumps(arguments),
            "output.value": result,
        }
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.tool.call.arguments": json.dumps(arguments),
        "gen_ai.tool.call.result": result,
    }


def _reward(rollout: AttemptedRollout, number: int, outcome: _Outcome, at: float | None) -> Span:
    values = {
        "primary": outcome.reward,
        "tests_pass": 1.0 if (outcome.reward or 0.0) > 0.5 else 0.0,
        "format": 1.0 if outcome.length < 400 else 0.5,
    }
    attributes: dict[str, Any] = {}
    for index, (name, value) in enumerate(values.items()):
        attributes |= {f"agentlightning.reward.{index}.name": name, f"agentlightning.reward.{index}.value": value}
    return _span(rollout, number, 1, "agentlightning.annotation", attributes, at or 0.0, at or 0.0)


def _span(
    rollout: AttemptedRollout,
    number: int,
    parent: int | None,
    name: str,
    attributes: dict[str, Any],
    start: float,
    end: float,
    *,
    is_failed: bool = False,
) -> Span:
    return Span.from_attributes(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        trace_id=f"{1:032x}",
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        name=name,
        attributes=attributes,
        start_time=start,
        end_time=end,
        status=TraceStatus(status_code="ERROR" if is_failed else "OK"),
    )


def png(width: int = 42, height: int = 13) -> bytes:
    """Return a grey image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\x60" * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


STEPS: Final = tuple(range(FIRST_STEP, LAST_STEP + 1, STEP_WIDTH))
SMALL_STEPS: Final = tuple(range(280, 320, STEP_WIDTH))
"""Four steps before version 2 of the prompt, and four after."""


def clock_of(steps: Sequence[int]) -> ManualClock:
    """Return a clock that starts so early that a training of these steps ends now."""
    rollouts = sum(GROUPS * GROUP_SIZE + (0 if step % VAL_EVERY else len(TASKS)) for step in steps)
    return ManualClock(system_clock() - int((rollouts * ROLLOUT_SECONDS + IDLE_SECONDS) * MICROSECONDS))


async def fill(url: str, steps: Sequence[int]) -> Story:
    """Fill an empty store with a training that ends now."""
    clock = clock_of(steps)
    async with open_store(url, clock=clock) as store:
        assert (await store.query_rollouts(limit=0)).total == 0, f"{url} is not empty"
        return await build(store, clock, steps=steps)


async def main(file: str, *options: str) -> None:
    """Fill a new file."""
    start = time.perf_counter()
    story = await fill(f"sqlite:///{file}", SMALL_STEPS if "--small" in options else STEPS)
    print(f"{story.rollouts} rollouts, {len(story.hacked)} edited a test, in {time.perf_counter() - start:.0f} s")
    print(f"{TURNS} turns: {story.long_id}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
