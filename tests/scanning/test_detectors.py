"""Detectors decide whether the texts and spans of one attempt match a scanner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from store import AttemptRecord, Conflict, Invalid, Span, Unavailable
from store.models import Attempt, Rollout
from store.scanning import Detector, function_definition
from store.validation.scores import VersionKey

HERE = "tests.scanning.scanners"
CALL: dict[str, Any] = {
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "fix the failing tests",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "I deleted the failing tests, so all pass",
}
TOOL: dict[str, Any] = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "Bash",
    "gen_ai.tool.call.arguments": '{"command": "rm -rf tests"}',
    "gen_ai.tool.call.result": "timeout after 600 s",
}


def record_of(number: int = 4, answer: str | None = None) -> AttemptRecord:
    ids: dict[str, Any] = {"rollout_id": "ro-1", "attempt_id": "at-1"}
    call = CALL if answer is None else {**CALL, "gen_ai.completion.0.content": answer}
    spans = [
        Span.from_attributes(**ids, sequence_id=1, name="openai.chat.completion", attributes=call),
        Span.from_attributes(**ids, sequence_id=2, name="execute_tool Bash", attributes=TOOL),
    ]
    rollout = Rollout(rollout_id="ro-1", input={"n": number, "task": "repair"}, start_time=1.0)
    return AttemptRecord(rollout, Attempt(**ids, sequence_id=1, start_time=1.0), spans)


def detector(kind: str, **definition: Any) -> Detector:
    return Detector(VersionKey("scanner", "v1"), kind, definition)


@pytest.mark.parametrize(
    "query,is_match",
    [
        ("deleted tests", True),
        ('role:assistant:"deleted the failing"', True),
        ("role:user:deleted", False),
        ("tool:bash:timeout fail*", True),
        ("tool:sh", False),
        ("input:repair -tool:bash", False),
        ("delete", False),
        ('"failing deleted"', False),
        ("regex:rm\\s+-rf", True),
        ('role:assistant regex:"rm\\s+-rf"', False),
    ],
)
def test_query_of_search_is_evaluated_on_texts_of_one_attempt(query: str, is_match: bool) -> None:
    assert detector("search", query=query).load()(record_of())["value"] == float(is_match)


def test_match_is_explained_by_its_text() -> None:
    matched = detector("regex", pattern="rm +-rf", scope="tool:bash").load()(record_of())
    assert matched == {"value": 1.0, "explanation": 'call Bash: {"command": "rm -rf tests"}'}
    assert detector("regex", pattern="rm +-rf", scope="role:user").load()(record_of())["value"] == 0


def test_hostile_pattern_takes_linear_time() -> None:
    record = record_of(answer="a" * 100_000 + "!")
    assert detector("regex", pattern="(a+)+$").load()(record)["value"] == 0


@pytest.mark.parametrize(
    "kind,definition,reason",
    [
        ("search", {"query": "where:x"}, "unknown scope"),
        ("search", {"query": "note:x"}, "reads only the attempt"),
        ("regex", {"pattern": "(a"}, "not an expression of RE2"),
        ("regex", {"pattern": "a", "scope": "role:judge"}, "unknown role"),
        ("function", {"function": "no_module_here:f", "code_sha256": None}, "cannot be imported"),
        ("function", {"function": f"{HERE}:missing", "code_sha256": None}, "is missing"),
        ("function", {"function": HERE, "code_sha256": None}, "module:function"),
        ("model", {"prompt": "?", "model": "m"}, "endpoint"),
    ],
)
def test_malformed_definition_is_refused_with_its_reason(kind: str, definition: dict[str, Any], reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        detector(kind, **definition).load()


async def test_function_returns_a_bool_with_an_optional_explanation() -> None:
    even = detector("function", **function_definition(f"{HERE}:is_even")).load()
    assert even(record_of(4)) == {"value": 1.0, "explanation": "it is 4"}
    big = detector("function", **function_definition(f"{HERE}:is_big")).load()
    assert (await big(record_of(4)))["value"] == 0
    with pytest.raises(TypeError, match="returned NoneType; it must return a bool"):
        detector("function", **function_definition(f"{HERE}:unreliable")).load()(record_of(1))


async def test_long_explanation_is_cut_to_the_limit_of_the_log() -> None:
    verbose = detector("function", **function_definition(f"{HERE}:verbose")).load()
    explanation = verbose(record_of())["explanation"]
    assert explanation.startswith("a\ufffdé")
    assert len(explanation.encode()) == 4096


def test_changed_code_of_a_version_is_refused() -> None:
    with pytest.raises(Conflict, match="choose a new version"):
        detector("function", function=f"{HERE}:is_even", code_sha256="0" * 64).load()


async def test_model_judges_the_transcript_over_the_protocol_of_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ['{"match": true, "explanation": "it removed tests"}', "No, it did not.", "perhaps", 503, 400]
    requests: list[tuple[str | None, dict[str, Any]]] = []

    async def complete(request: web.Request) -> web.Response:
        requests.append((request.headers.get("Authorization"), await request.json()))
        answer = answers[0]
        if isinstance(answer, int):
            return web.Response(status=answer, text="busy")
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": answer}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    monkeypatch.setenv("JUDGE_KEY", "secret")
    monkeypatch.setattr("store.scanning.model_judge._PAUSE_SECONDS", 0)
    async with TestServer(app) as server:
        definition = {"prompt": "Did it cheat?", "model": "judge", "endpoint": str(server.make_url("/v1"))}
        judge = Detector(VersionKey("scanner", "v1"), "model", definition, "JUDGE_KEY").load()
        assert await judge(record_of()) == {"value": 1.0, "explanation": "it removed tests"}
        key, request = requests.pop()
        assert (key, request["model"]) == ("Bearer secret", "judge")
        assert request["messages"][0]["content"].startswith("Did it cheat?")
        assert "[assistant]\nI deleted the failing tests" in request["messages"][1]["content"]
        answers.pop(0)
        assert (await judge(record_of()))["value"] == 0
        answers.pop(0)
        with pytest.raises(ValueError, match="neither yes nor no"):
            await judge(record_of())
        answers.pop(0)
        requests.clear()
        with pytest.raises(Unavailable, match="status 503: busy"):
            await judge(record_of())
        assert len(requests) == 3
        answers.pop(0)
        with pytest.raises(Unavailable, match="status 400"):
            await asyncio.wait_for(judge(record_of()), 5)
        assert len(requests) == 4
