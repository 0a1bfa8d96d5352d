"""Random traces for the comparison of two adapters, with every form of spans of calls, agents and rewards."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import json
import random
from typing import Any

from agentlightning.types import Span

CALL = "openai.chat.completion"
ANNOTATION = "agentlightning.annotation"
OPERATION = "agentlightning.operation"
OUTPUT = f"{OPERATION}.output"
INPUT = f"{OPERATION}.input"
REWARD = "agentlightning.reward"

NAMES = [*[CALL] * 6, f"{CALL}s.create", ANNOTATION, ANNOTATION, OPERATION, "agent.node", "session", "tool"]
PROXY_NAMES = ["raw_gen_ai_request", "litellm_request", "litellm_request", ANNOTATION, CALL, "router"]
IDS = [[1, 2], [3], [], [4, 5, 6], [7, 8]]


def example() -> list[Span]:
    """The trace of the documentation's example: two agents, three calls, one of them recorded twice, two rewards."""
    return [
        _span("root", "session", None, 0, 20),
        _span("A", "agent.node", "root", 1, 9, {"agent.name": "planner"}),
        _span(
            "c1", CALL, "root", 2, 3, {"gen_ai.response.id": "R1", "prompt_token_ids": [1], "response_token_ids": [2]}
        ),
        _span("w1", ANNOTATION, "A", 3.5, 3.5, _reward(0.1)),
        _span("B", "agent.node", "root", 10, 19, {"agent.name": "writer"}),
        _span("c2", CALL, "B", 11, 12, {"gen_ai.response.id": "R2"}),
        _span("c2x", CALL, "B", 11.1, 11.9, {"gen_ai.response.id": "R2"}),
        _span("c3", CALL, "B", 13, 14, {"gen_ai.response.id": "R3"}),
        _span("fin", ANNOTATION, None, 21, 21, _reward(1.0)),
    ]


def by_lot(seed: int, *, proxy: bool = False) -> list[Span]:
    """Return the spans of one attempt, the same for the same seed. Now and then there is something wrong with them."""
    lot = random.Random(seed)
    spans: list[Span] = []
    with_flaws = lot.random() < 0.2
    in_turn = lot.random() < 0.6
    for number in range(lot.choice([0, 1, 2, *range(3, 16)])):
        ids = [span.span_id for span in spans]
        span_id = lot.choice(ids) if with_flaws and ids and lot.random() < 0.1 else f"s{number}"
        # One missing parent at most: Agent-lightning leaves the order of several to chance.
        parents = [None, "missing", *ids, *ids, *ids, *([span_id] if with_flaws else [])]
        begun = number if in_turn else lot.choice([lot.randrange(12), lot.random() * 12])
        start = None if with_flaws and lot.random() < 0.1 else begun
        end = None if with_flaws and lot.random() < 0.1 else (start or 0) + lot.choice([0, 0.5, 1, 3, 8])
        name = lot.choice(PROXY_NAMES if proxy else NAMES)
        attributes = _attributes(lot, name, flawed=with_flaws)
        spans.append(_span(span_id, name, lot.choice(parents), start, end, attributes, lot.randrange(1, 12)))
    if lot.random() < 0.3:
        lot.shuffle(spans)
    return spans


def chat_by_lot(seed: int) -> list[Span]:
    """Return spans of calls with messages and tools, in the order of time. Now and then something is missing."""
    lot = random.Random(seed)
    flawed = lot.random() < 0.1
    spans: list[Span] = []
    for number in range(lot.randrange(1, 5)):
        parts = lot.sample(_of_chats(lot, flawed=flawed), k=lot.randrange(7))
        attributes = {key: value for part in parts for key, value in part.items()}
        spans.append(_span(f"s{number}", CALL, None, number, number + 0.5, attributes))
        for tool in range(lot.choice([0, 0, 1, 2])):
            said = {"tool.name": "f", "tool.parameters": '{"x": 1}', "tool.call.id": f"t{tool}"}
            said |= {} if flawed and lot.random() < 0.3 else {"tool.call.type": "function"}
            spans.append(_span(f"t{number}.{tool}", "tool", f"s{number}", number + 0.1, number + 0.2, said))
    return spans


def _of_chats(lot: random.Random, *, flawed: bool) -> list[dict[str, Any]]:
    prompt, completion, function = "gen_ai.prompt", "gen_ai.completion.0", "gen_ai.request.functions.0"
    role = lot.choice(["user", "system", "developer", "assistant"])
    return [
        {f"{prompt}.0.role": role, f"{prompt}.0.content": "hi"},
        {f"{prompt}.1.content": "so"} if flawed else {f"{prompt}.1.role": "user"},
        {f"{prompt}.2.role": "tool", f"{prompt}.2.content": "4", f"{prompt}.2.tool_call_id": "t"},
        {
            f"{prompt}.10.role": "assistant",
            f"{prompt}.10.tool_calls.0.id": "t",
            f"{prompt}.10.tool_calls.0.name": "f",
            f"{prompt}.10.tool_calls.0.arguments": "{}",
        },
        {f"{prompt}.prompt_filter_results": "[]"} if flawed else {},
        {f"{completion}.role": lot.choice(["assistant", "assistant", "tool"]), f"{completion}.content": "yes"},
        {f"{completion}.role": "assistant", f"{completion}.finish_reason": "stop"},
        {"gen_ai.request.model": "m", f"{function}.name": "f", f"{function}.parameters": '{"type": "object"}'},
        {"gen_ai.response.model": "m"},
    ]


def _span(
    span_id: str,
    name: str,
    parent_id: str | None,
    start: float | None,
    end: float | None,
    attributes: dict[str, Any] | None = None,
    sequence_id: int = 0,
) -> Span:
    return Span.from_attributes(
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=sequence_id,
        trace_id="1" * 32,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        start_time=start,
        end_time=end,
        attributes=attributes or {},
    )


def _reward(value: float) -> dict[str, Any]:
    return {f"{REWARD}.0.name": "primary", f"{REWARD}.0.value": value}


def _attributes(lot: random.Random, name: str, *, flawed: bool) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if name.startswith(CALL) or lot.random() < 0.05:
        parts += lot.sample(_of_calls(lot), k=lot.randrange(6))
    if name in PROXY_NAMES:
        parts += lot.sample(_of_proxies(lot), k=lot.randrange(7))
    if name == ANNOTATION or lot.random() < 0.08:
        parts.append(lot.choice(_of_rewards(lot)))
    if name == OPERATION:
        parts.append(lot.choice([{f"{OPERATION}.name": REWARD}, {f"{OPERATION}.name": "other"}, {}]))
    if name in {"agent.node", "tool", "session"}:
        parts.append(lot.choice(_of_agents(lot)))
    if flawed and lot.random() < 0.1:
        parts.append(lot.choice(_FLAWS))
    return {key: value for part in parts for key, value in part.items()}


def _of_calls(lot: random.Random) -> list[dict[str, Any]]:
    image = [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}, {"type": "text", "text": "x"}, 3]
    return [
        {"gen_ai.response.id": f"R{lot.randrange(4)}", "gen_ai.response.model": "m"},
        {"gen_ai.response.id": lot.choice([3, "", "R1"])},
        {f"{OUTPUT}.id": f"R{lot.randrange(6)}", f"{OUTPUT}.choices.0.token_ids": lot.choice(IDS)},
        {f"{OUTPUT}.choices.0.provider_specific_fields.token_ids": lot.choice(IDS), f"{OUTPUT}.model": "m"},
        {f"{OUTPUT}.prompt_token_ids": lot.choice(IDS), f"{OUTPUT}.response_token_ids.0": lot.choice(IDS)},
        {f"{INPUT}.messages.0.role": "user", f"{INPUT}.messages.0.content": "hi", f"{INPUT}.temperature": 0.5},
        {"prompt_token_ids": lot.choice(IDS), "response_token_ids": lot.choice(IDS)},
        {"prompt_token_ids": lot.choice(["[1, 2]", [1.5], ["a"], [True]])},
        {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": lot.choice(["hi", json.dumps(image), "[oops"])},
        {"gen_ai.prompt.1.role": "tool", "gen_ai.prompt.1.tool_call_id": "t", "gen_ai.prompt.1.content": "4"},
        {"gen_ai.prompt.10.content": json.dumps(image[:1]), "gen_ai.prompt.prompt_filter_results": "[]"},
        {"gen_ai.prompt.content": json.dumps(image), "gen_ai.prompt.content.below": 1},
        {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "yes"},
        {"gen_ai.completion.0.tool_calls.0.id": "t", "gen_ai.completion.0.tool_calls.0.name": "f"},
        {"gen_ai.request.model": "m", "gen_ai.request.functions.0.name": "f", "gen_ai.request.messages": "x"},
        {"logprobs.content": lot.choice([json.dumps([{"token": "a", "logprob": -0.5}]), "null"])},
    ]


def _of_proxies(lot: random.Random) -> list[dict[str, Any]]:
    vllm = "llm.hosted_vllm"
    return [
        {"gen_ai.response.id": f"R{lot.randrange(4)}"},
        {f"{vllm}.id": f"R{lot.randrange(4)}"},
        {f"{vllm}.prompt_token_ids": repr(lot.choice(IDS)), f"{vllm}.response_token_ids": repr([lot.choice(IDS)])},
        {f"{vllm}.prompt_token_ids": lot.choice(IDS), f"{vllm}.response_token_ids": lot.choice(["[]", "[[", "[1]"])},
        {f"{vllm}.choices": repr(lot.choice([[{"token_ids": [9], "text": None}], [], [3], [{"index": 0}]]))},
        {"prompt_token_ids": lot.choice([*IDS, "[5, 6]"]), "response_token_ids": lot.choice([*IDS, "(1, 2)", "x"])},
        {"prompt_token_ids": [1], "response_token_ids": [2]},
    ]


def _of_rewards(lot: random.Random) -> list[dict[str, Any]]:
    value = round(lot.random(), 3)
    agentops = json.dumps({"type": "reward", "value": lot.choice([value, None, 1])})
    return [
        _reward(value),
        _reward(value),
        {**_reward(value), f"{REWARD}.1.name": "style", f"{REWARD}.1.value": 2},
        {"agentops.task.output": agentops},
        {"agentops.entity.output": lot.choice([agentops, "no JSON", "{}", json.dumps({"type": "other"})])},
        {"reward": value},
        {"comment": "none"},
    ]


def _of_agents(lot: random.Random) -> list[dict[str, Any]]:
    name = lot.choice(["planner", "writer", "critic"])
    return [
        {},
        {"agent.name": name},
        {"agentops.span.kind": lot.choice(["agent", "tool"]), "operation.name": name},
        {lot.choice(["recipient_agent_type", "langchain.chain.type", "executor.id"]): name},
        {"type": "agent", f"{INPUT}.name": name},
        {"lc_name": name},
    ]


_FLAWS: list[dict[str, Any]] = [
    {f"{REWARD}_model": "look-alike"},
    {REWARD: 1.0},
    {f"{REWARD}.0.value": 1.0},
    {f"{REWARD}.0.name": "a", f"{REWARD}.0.value": "many"},
    {"agentops.task.output": "5"},
    {"agentops.task.output": "[1]"},
    {"gen_ai.prompt": "whole"},
    {"gen_ai.request": "whole"},
    {"logprobs.content": "{"},
]
