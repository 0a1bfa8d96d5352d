"""OTLP in JSON: exported rollouts come back, and traces of other programs become rollouts."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from store import open_store
from store.adapters.messages import TraceToMessages
from store.exports import export_store
from store.imports import ImportResult, import_rollouts, read_otlp
from store.imports import otlp_files as files
from store.interface.store import Store
from store.models import AttemptedRollout
from store.models.flat_spans import flat_span
from store.models.queries import RolloutQuery
from store.otel.encode import as_json, otlp_span
from store.semconv import ATTEMPT_ID, EXPORTED, RESOURCES_ID, ROLLOUT_ID
from tests.exports.agents import conversation, fill
from tests.otel.otlp_messages import as_json as message_json
from tests.otel.otlp_messages import group, request, span


def counts(report: ImportResult) -> tuple[int, int, int, int]:
    return report.imported, report.unchanged, report.spans, report.skipped


async def import_(store: Store, *paths: Path, **options: Any) -> ImportResult:
    return await import_rollouts(store, read_otlp(paths), source="otlp", **options)


async def only(store: Store) -> AttemptedRollout:
    (rollout,) = await store.query_rollouts()
    assert isinstance(rollout, AttemptedRollout)
    return rollout


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an export of agents with retries, groups and rewards."""
    import asyncio

    directory = tmp_path_factory.mktemp("exported")

    async def export() -> None:
        url = f"sqlite:///{directory / 'agents.db'}"
        await fill(url)
        async with await open_store(url, read_only=True) as source:
            await export_store(source, "otlp", directory / "out")

    asyncio.run(export())
    return directory / "out"


def lines_of(directory: Path) -> list[bytes]:
    return (directory / "part-00000.jsonl").read_bytes().splitlines()


def without_ids(line: bytes) -> bytes:
    """Return a line without the ids of rollout and attempt, which each store chooses."""
    for name in (ROLLOUT_ID, ATTEMPT_ID):
        line, count = re.subn(rb'("%b","value":\{"stringValue":")[^"]*' % name.encode(), rb"\1", line)
        assert count == 1
    return line


async def test_export_import_export_gives_equal_bytes_but_for_the_ids(
    store: Store, exported: Path, tmp_path: Path
) -> None:
    report = await import_(store, exported)
    assert counts(report) == (7, 0, len(lines_of(exported)), 0)
    await export_store(store, "otlp", tmp_path / "again")
    assert sorted(map(without_ids, lines_of(tmp_path / "again"))) == sorted(map(without_ids, lines_of(exported)))
    (retried,) = await store.find_rollouts(RolloutQuery(rollout_id_in=[await _first(store)]))
    assert (retried.input, retried.mode, retried.status) == ({"question": "What is 0+0?"}, "train", "succeeded")
    assert (retried.metadata or {})["rollbook.group"] == "task 0"
    attempts = await store.query_attempts(retried.rollout_id)
    assert [(attempt.sequence_id, attempt.status) for attempt in attempts] == [(1, "failed"), (2, "succeeded")]
    assert counts(await import_(store, exported)) == (0, 7, 0, 0)


async def _first(store: Store) -> str:
    return (await store.query_rollouts(sort_by="start_time"))[0].rollout_id


async def test_an_export_changes_nothing_in_its_own_store_over_the_endpoint(exported: Path, tmp_path: Path) -> None:
    del tmp_path
    url = f"sqlite:///{exported.parent / 'agents.db'}"
    async with await open_store(url) as source:
        before = await source.log.position()
        spans = [entry.span.span() for entry in files.spans_in([exported]) if isinstance(entry, files.FileSpan)]
        assert len(spans) == len(lines_of(exported))
        assert await source.add_many_spans(spans) == []
        assert await source.log.position() == before


def openinference(trace: bytes, **fields: Any) -> Any:
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "qwen",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "2+2?",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "4",
        "llm.token_count.prompt": 5,
    }
    return span(attributes, trace_id=trace, name="ChatCompletion", **fields)


def genai(trace: bytes, **fields: Any) -> Any:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "qwen",
        "gen_ai.input.messages": '[{"role":"user","parts":[{"type":"text","content":"3+3?"}]}]',
        "gen_ai.output.messages": (
            '[{"role":"assistant","parts":[{"type":"text","content":"6"}],"finish_reason":"stop"}]'
        ),
        "gen_ai.usage.input_tokens": 7,
    }
    return span(attributes, trace_id=trace, **{"name": "chat qwen", **fields})


ONE, TWO = b"\1" * 16, b"\2" * 16


async def test_each_foreign_trace_becomes_a_rollout_whose_model_calls_are_read(store: Store, tmp_path: Path) -> None:
    root = span({"input.value": '{"q": 1}'}, trace_id=ONE, span_id=b"\7" * 8, name="agent", kind=2)
    child = openinference(ONE, parent_span_id=b"\7" * 8, start_time_unix_nano=1_700_000_000_500_000_000)
    chat = genai(TWO, end_time_unix_nano=1_700_000_009_000_000_000)
    resource = {"service.name": "solver"}
    # A collector writes spans when they end, and mixes traces.
    lines = [message_json(request(group(part, resource=resource))) for part in (child, chat, root)]
    (tmp_path / "traces.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    (tmp_path / "again.jsonl.gz").write_bytes(gzip.compress(b"\n\n".join(lines)))
    assert counts(await import_(store, tmp_path, is_dry_run=True)) == (2, 0, 3, 0)
    assert counts(await import_(store, tmp_path)) == (2, 0, 3, 0)
    assert counts(await import_(store, tmp_path)) == (0, 2, 0, 0)
    first, second = await store.query_rollouts(sort_by="plan_key")
    assert (first.input, first.status, second.status) == ({"q": 1}, "succeeded", "succeeded")
    assert second.input == [{"role": "user", "parts": [{"type": "text", "content": "3+3?"}]}]
    metadata: Mapping[str, Any] = first.metadata or {}
    assert (metadata["name"], metadata["service.name"]) == ("agent", "solver")
    assert metadata["rollbook.source"]["key"] == f"trace:{ONE.hex()}"
    assert (second.metadata or {})["rollbook.source"]["end_time"] == 1_700_000_009
    spans = await store.query_spans(first.rollout_id)
    assert [(item.sequence_id, item.name) for item in spans] == [(1, "agent"), (2, "ChatCompletion")]
    texts = [
        [message["content"] for message in conversation["messages"]]
        for rollout in (first, second)
        for conversation in TraceToMessages().adapt(list(await store.query_spans(rollout.rollout_id)))
    ]
    assert texts == [["2+2?", "4"], ["3+3?", "6"]]


async def test_the_root_of_a_trace_decides_whether_its_rollout_failed(sqlite_store: Store, tmp_path: Path) -> None:
    error = {"code": 2, "message": "broken"}
    root = span(trace_id=TWO, span_id=b"\7" * 8, status=error)
    parts = (genai(ONE, status=error), genai(TWO, parent_span_id=b"\7" * 8), root)
    inner = genai(b"\3" * 16, parent_span_id=b"\7" * 8, status=error)
    outer = span(trace_id=b"\3" * 16, span_id=b"\7" * 8)
    (tmp_path / "a.jsonl").write_bytes(message_json(request(group(*parts, inner, outer))))
    await import_(sqlite_store, tmp_path)
    rollouts = await sqlite_store.query_rollouts(sort_by="plan_key")
    assert [rollout.status for rollout in rollouts] == ["failed", "failed", "succeeded"]


async def test_spans_of_the_tracer_are_grouped_by_their_resource(sqlite_store: Store, tmp_path: Path) -> None:
    groups = [
        group(genai(trace), resource={ROLLOUT_ID: "ro-1", ATTEMPT_ID: attempt})
        for trace, attempt in ((ONE, "at-1"), (TWO, "at-2"))
    ]
    (tmp_path / "a.json").write_bytes(message_json(request(*groups)))
    assert counts(await import_(sqlite_store, tmp_path / "a.json")) == (1, 0, 2, 0)
    rollout = await only(sqlite_store)
    assert (rollout.metadata or {})["rollbook.source"]["key"] == "rollout:ro-1"
    assert len(await sqlite_store.query_attempts(rollout.rollout_id)) == 2


async def export_twice(older: Path, newer: Path) -> str:
    """Export a rollout while its attempt is running, and after its end. Return the id of the attempt."""
    async with await open_store("memory://") as source:
        attempt = (await source.start_rollout("x")).attempt
        await source.add_many_spans(conversation(attempt, 0))
        await export_store(source, "otlp", older)
        await source.update_attempt(attempt.rollout_id, attempt.attempt_id, "succeeded")
        await export_store(source, "otlp", newer)
    return attempt.attempt_id


async def test_a_rollout_with_a_running_attempt_is_skipped_until_a_later_export(
    sqlite_store: Store, tmp_path: Path
) -> None:
    attempt_id = await export_twice(tmp_path / "older", tmp_path / "newer")
    report = await import_(sqlite_store, tmp_path / "older")
    assert counts(report) == (0, 0, 0, 1)
    assert report.skips[0].place == f"{tmp_path}/older/part-00000.jsonl:1"
    assert report.skips[0].reason == f"attempt {attempt_id} was running when it was exported; export it after its end"
    assert counts(await import_(sqlite_store, tmp_path / "newer"))[::3] == (1, 0)
    rollout = await only(sqlite_store)
    assert (rollout.status, rollout.input) == ("succeeded", "x")


@pytest.mark.parametrize("order", [("older", "newer"), ("newer", "older")], ids="-".join)
async def test_the_later_of_two_exports_determines_the_status(
    order: tuple[str, str], sqlite_store: Store, tmp_path: Path
) -> None:
    await export_twice(tmp_path / "older", tmp_path / "newer")
    report = await import_(sqlite_store, *(tmp_path / name for name in order))
    assert counts(report)[::3] == (1, 0)
    assert (await only(sqlite_store)).status == "succeeded"


async def test_damaged_parts_are_skipped_with_their_place(sqlite_store: Store, tmp_path: Path) -> None:
    good = message_json(request(group(genai(ONE))))
    empty_id = message_json(request(group(span(trace_id=b"", name="no id"), openinference(TWO))))
    content: dict[str, bytes] = {
        "a.jsonl": b"\n".join([good, good[:40], b'{"a":1}', b"[1]", b'{"resourceSpans":[1]}', empty_id, good[:80]]),
        "b.jsonl.gz": gzip.compress(b"\n".join([good] * 100 + [os.urandom(5000).hex().encode()]))[:-40],
        "c.json": b'{"resourceLogs":[]}',
        "d.json": b"hello\nworld",
        "e.jsonl": b"",
        "manifest.json": b"{}",
        "f.txt": b"ignored",
    }
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    report = await import_(sqlite_store, tmp_path)
    assert counts(report) == (2, 0, 2, 9)
    skips = {skip.place.removeprefix(f"{tmp_path}/"): skip.reason for skip in report.skips}
    # What a buffer contains before the damage is lost too.
    (torn,) = [place for place in skips if place.startswith("b.jsonl.gz:")]
    assert 10 < int(torn.partition(":")[2]) <= 101
    expected = {
        "a.jsonl:2": "the line is not JSON",
        "a.jsonl:3": "the JSON is not a request of OTLP; it has no resourceSpans",
        "a.jsonl:4": "the JSON is not a request of OTLP",
        "a.jsonl:5": "Unable to parse OTLP traces payload: resourceSpans: 1 is not an object",
        "a.jsonl:6": "traceId: '' is not an id of 32 hex digits",
        "a.jsonl:7": "the file ends within it",
        torn: "the compressed file is damaged",
        "c.json:1": "the JSON contains logs, not spans",
        "d.json": "the file is not OTLP in JSON, neither by line nor as a whole",
    }
    assert skips.keys() == expected.keys()
    for place, reason in expected.items():
        assert reason in skips[place]


@pytest.mark.parametrize(
    "lines, torn, traces",
    [
        (["torn", "one", "two"], 1, 2),
        (["one", "torn+two"], 2, 2),
        (["torn+one", "two"], 1, 2),
        (["torn+one"], 1, 1),
    ],
)
async def test_a_torn_line_loses_only_its_own_request(
    lines: list[str], torn: int, traces: int, sqlite_store: Store, tmp_path: Path
) -> None:
    one, two = (message_json(request(group(genai(trace)))) for trace in (ONE, TWO))
    parts = {"torn": two[:40], "one": one, "two": two}
    content = [b"".join(parts[name] for name in line.split("+")) for line in lines]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(content) + b"\n")
    report = await import_(sqlite_store, tmp_path)
    assert counts(report) == (traces, 0, traces, 1)
    assert report.skips[0].place == f"{tmp_path}/a.jsonl:{torn}"
    assert "the line is not JSON" in report.skips[0].reason


async def test_a_document_over_several_lines_is_read(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pretty.json"
    body = orjson.loads(message_json(request(group(genai(ONE)))))
    path.write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2))
    assert counts(await import_(sqlite_store, path)) == (1, 0, 1, 0)
    monkeypatch.setattr(files, "_LARGEST_DOCUMENT", 100)
    (skip,) = (await import_(sqlite_store, path)).skips
    assert "a document over several lines may have 100 bytes" in skip.reason


async def test_a_line_that_is_too_long_is_skipped(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = message_json(request(group(genai(ONE))))
    monkeypatch.setattr(files, "_LONGEST_LINE", len(good) + 1)
    (tmp_path / "a.jsonl").write_bytes(good + b"\n" + b"x" * 5 * len(good) + b"\n" + good)
    report = await import_(sqlite_store, tmp_path)
    assert counts(report) == (1, 0, 1, 1)
    assert "a.jsonl:2: the line has more than" in f"{report.skips[0].place}: {report.skips[0].reason}"


async def test_a_span_that_differs_from_an_earlier_one_is_skipped(sqlite_store: Store, tmp_path: Path) -> None:
    one = genai(ONE, span_id=b"\1" * 8)
    other = genai(ONE, span_id=b"\1" * 8, end_time_unix_nano=1_700_000_009_000_000_000)
    for name, part in (("a", one), ("b", other)):
        (tmp_path / f"{name}.jsonl").write_bytes(message_json(request(group(part))))
    (skip,) = (await import_(sqlite_store, tmp_path)).skips
    assert skip.place == f"{tmp_path}/b.jsonl:1"
    assert skip.reason == f"span {'01' * 8} differs from the span with the same ids at {tmp_path}/a.jsonl:1"
    # A trace that has grown since its import is reported, because a rollout that has ended does not change.
    (tmp_path / "b.jsonl").write_bytes(message_json(request(group(genai(ONE)))))
    (skip,) = (await import_(sqlite_store, tmp_path)).skips
    assert "its content has changed since it was imported" in skip.reason


async def test_values_that_no_store_accepts_are_changed_and_marked(sqlite_store: Store, tmp_path: Path) -> None:
    strange = genai(ONE, name="a" * 2000)
    (tmp_path / "a.jsonl").write_bytes(message_json(request(group(strange))))
    assert counts(await import_(sqlite_store, tmp_path)) == (1, 0, 1, 0)
    (stored,) = await sqlite_store.query_spans((await only(sqlite_store)).rollout_id)
    assert (len(stored.name), "rollbook.changed" in stored.attributes) == (1024, True)


async def test_the_resources_of_an_exported_rollout_stay_behind(sqlite_store: Store, tmp_path: Path) -> None:
    (agent,) = conversation(type("A", (), {"rollout_id": "ro", "attempt_id": "at-12345678"}), 1)[:1]
    (tmp_path / "a.jsonl").write_bytes(as_json([otlp_span(flat_span(agent), {RESOURCES_ID: "prompt/1"})]))
    await import_(sqlite_store, tmp_path)
    rollout = await only(sqlite_store)
    (stored,) = await sqlite_store.query_spans(rollout.rollout_id)
    assert (rollout.resources_id, EXPORTED in stored.attributes) == (None, False)


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        next(iter(read_otlp([tmp_path / "nothing.jsonl"])))
