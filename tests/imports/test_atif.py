"""Documents of ATIF: our own restore their rollouts, those of other agents become rollouts, and others are reported."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from store import open_store
from store.adapters.messages import TraceToMessages
from store.adapters.triplets import TracerTraceToTriplet
from store.errors import NotFound
from store.exports import export_store
from store.imports import ImportResult, import_rollouts
from store.imports.atif import atif_rollouts
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, RolloutConfig, Span
from store.testing.samples import make_prompt
from tests.atif.attempts import ATTEMPTS
from tests.atif.foreign import TRAJECTORY, set_field


async def import_atif(store: Store, *paths: Path, **options: Any) -> ImportResult:
    return await import_rollouts(store, atif_rollouts(paths), source="atif", **options)


async def fill(store: Store) -> None:
    """Fill a store with rollouts of every kind of attempt, ended in every way."""
    await store.add_resources(make_prompt("used"))
    for number, spans in enumerate(ATTEMPTS.values()):
        metadata = {
            "z": 1,
            "rollbook.group": f"group {number // 2}",
            "rollbook.step": number,
            "rollbook.key": f"k{number}",
            "a": [None],
        }
        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        rollout = await store.start_rollout(
            {"z": number, "a": "é"}, "val" if number % 2 else None, None, config, metadata
        )
        await _end(
            store, rollout, spans, *(("failed", AttemptError(type="Flaky")) if number == 0 else ("succeeded", None))
        )
    (again,) = await store.dequeue_many_rollouts(limit=1, worker_id="w")
    await _end(store, again, ATTEMPTS["a tool user"], "succeeded")
    await _end(store, await store.start_rollout("a text"), ATTEMPTS["media"], "timeout")
    cancelled = await store.start_rollout(None, metadata={})
    await store.update_rollout(cancelled.rollout_id, status="cancelled")


async def _end(
    store: Store, rollout: AttemptedRollout, spans: list[Span], status: Any, error: AttemptError | None = None
) -> None:
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    first = 1 + len(await store.query_spans(rollout.rollout_id))
    for number, span in enumerate(spans, first):
        await store.add_span(span.model_copy(update={**ids, "sequence_id": number}))
    fields: dict[str, Any] = {} if error is None else {"error": error}
    await store.update_attempt(*ids.values(), status=status, metadata={"host": "h"}, **fields)


def documents(directory: Path) -> dict[str, bytes]:
    """Return the files of an export without its manifest, which names the store."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize("is_to_postgres", [True, False], ids=["to Postgres", "to SQLite"])
async def test_an_export_of_an_import_has_the_same_bytes(
    is_to_postgres: bool, sqlite_store: Store, postgres_url: str, tmp_path: Path
) -> None:
    async with await open_store(postgres_url) as postgres:
        source, target = (sqlite_store, postgres) if is_to_postgres else (postgres, sqlite_store)
        await fill(source)
        await target.add_resources(make_prompt("unused"))
        report = await export_store(source, "atif", tmp_path / "first", rows_per_file=4)
        assert (report.rollouts, report.rows) == (10, {"trajectories": 11})
        result = await import_atif(target, tmp_path / "first")
        assert (result.imported, result.skips) == (10, [])
        await export_store(target, "atif", tmp_path / "second", rows_per_file=4)
        assert documents(tmp_path / "second") == documents(tmp_path / "first")
        assert len(documents(tmp_path / "first")) == 11 + 3
        first, *_ = sorted((tmp_path / "first").glob("*/*.json"))
        assert json.loads(first.read_bytes())["extra"]["rollbook"]["attempt"]["error"]["type"] == "Flaky"
        result = await import_atif(target, tmp_path / "second")
        assert (result.imported, result.unchanged, result.skips) == (0, 10, [])
        twins = await target.query_rollouts()
        restored = {(twin.metadata or {})["rollbook.atif"]["rollout_id"]: twin for twin in twins}
        for rollout in await source.query_rollouts():
            twin = restored[rollout.rollout_id]
            assert (twin.input, twin.mode, twin.reward, twin.rewards) == (
                rollout.input,
                rollout.mode,
                rollout.reward,
                rollout.rewards,
            )
            assert twin.status == rollout.status
            for adapter in (TraceToMessages(), TracerTraceToTriplet()):
                mine, theirs = [
                    [
                        adapter.adapt(await store.query_spans(rollout_id, attempt.attempt_id))
                        for attempt in await store.query_attempts(rollout_id)
                    ]
                    for store, rollout_id in ((source, rollout.rollout_id), (target, twin.rollout_id))
                ]
                assert _without_ids(mine) == _without_ids(theirs)


def _without_ids(items: Any) -> Any:
    names = {"rollout_id", "attempt_id"}
    if isinstance(items, dict):
        fields = cast("dict[str, Any]", items)
        return {name: _without_ids(item) for name, item in fields.items() if name not in names}
    if isinstance(items, list):
        return [_without_ids(item) for item in cast("list[Any]", items)]
    return _without_ids(items.model_dump()) if hasattr(items, "model_dump") else items


async def test_a_store_can_import_its_own_documents(sqlite_store: Store, tmp_path: Path) -> None:
    await _end(sqlite_store, await sqlite_store.start_rollout({}), ATTEMPTS["media"], "succeeded")
    await export_store(sqlite_store, "atif", tmp_path / "first")
    (before,) = [content for name, content in documents(tmp_path / "first").items() if name.endswith(".json")]
    assert (await import_atif(sqlite_store, tmp_path / "first")).imported == 1
    await export_store(sqlite_store, "atif", tmp_path / "second")
    assert [content for name, content in documents(tmp_path / "second").items() if name.endswith(".json")] == [
        before
    ] * 2
    assert (await import_atif(sqlite_store, tmp_path / "second")).unchanged == 1
    first, second = sorted((tmp_path / "second").glob("*/*.json"))
    second.write_bytes(before.replace(b"host", b"mast"))
    result = await import_atif(sqlite_store, tmp_path / "second")
    assert (result.unchanged, result.skipped) == (1, 1)
    assert f"is another one in {first}" in result.skips[0].reason


async def test_an_attempt_that_still_runs_is_reported(sqlite_store: Store, tmp_path: Path) -> None:
    await sqlite_store.start_rollout({})
    await export_store(sqlite_store, "atif", tmp_path / "export")
    async with await open_store("memory://") as target:
        result = await import_atif(target, tmp_path / "export")
        assert not await target.query_rollouts()
    (skip,) = result.skips
    assert "was preparing when it was exported; export it again after its end" in skip.reason


def write(directory: Path, name: str, document: Any) -> Path:
    """Write a document into a directory."""
    path = directory / name
    path.write_bytes(document if isinstance(document, bytes) else orjson.dumps(document))
    return path


async def test_a_document_of_another_agent_becomes_calls_and_tools(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, "trajectory.json", TRAJECTORY)
    result = await import_atif(store, file, file)
    assert (result.imported, result.unchanged, result.skips) == (1, 1, [])
    (rollout,) = await store.query_rollouts()
    assert (rollout.input, rollout.status) == ("What is in a?", "succeeded")
    assert rollout.metadata is not None
    assert rollout.metadata["atif"] == {
        name: TRAJECTORY[name]
        for name in (
            "schema_version",
            "session_id",
            "trajectory_id",
            "notes",
            "final_metrics",
            "continued_trajectory_ref",
        )
    } | {"agent": {"name": "terminal", "version": "2.0", "model_name": "large", "extra": {"temperature": 0}}}
    spans = await store.query_spans(rollout.rollout_id)
    parents = {span.span_id: span for span in spans}
    assert [(span.name, parents[span.parent_id].name if span.parent_id else None) for span in spans] == [
        ("openai.chat.completion", None),
        ("read", "openai.chat.completion"),
        ("read", "openai.chat.completion"),
        ("openai.chat.completion", None),
        ("delegate", "openai.chat.completion"),
        ("helper", "delegate"),
        ("openai.chat.completion", "helper"),
        ("openai.chat.completion", None),
        ("agentlightning.message", None),
    ]
    calls = TraceToMessages().adapt(spans)
    assert [call["messages"][-1]["content"] for call in calls] == ["I read.", None, "Helped.", "It is A."]
    assert [message["role"] for message in calls[3]["messages"]] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "tool", "user", "assistant", "assistant"
    ]  # fmt: skip
    assert [message["content"] for message in calls[2]["messages"]] == ["Help.", "Copied.", "Helped."]
    assert calls[0]["tools"] is not None
    triplet = TracerTraceToTriplet().adapt(spans)[0]
    assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1, 2, 3], [4, 5])
    assert triplet.response["logprobs"] == [-0.5, -0.25]
    # The time of the fourth step is before that of the third, and none has a zone; steps keep their order.
    assert [span.start_time for span in spans][2:4] == [1790000001.5, 1790000001.5]
    assert spans[0].attributes["llm.cost.total"] == 0.5
    assert spans[7].attributes["atif.extra"] == '{"is_final":true}'


async def test_documents_that_cannot_be_read_are_reported_and_others_are_imported(
    sqlite_store: Store, tmp_path: Path
) -> None:
    def changed(**fields: Any) -> dict[str, Any]:
        return {**copy.deepcopy(TRAJECTORY), **fields}

    (tmp_path / "job").mkdir()
    write(tmp_path, "a.json", changed(trajectory_id="a"))
    write(tmp_path, "b.json", changed(schema_version="ATIF-v9"))
    write(tmp_path, "c.json", b'{"schema_version": "ATIF-v1.7", ')
    write(tmp_path / "job", "config.json", {"job": 1})
    write(tmp_path / "job", "trajectory.json", changed(trajectory_id=None))
    write(tmp_path / "job", "broken.json", b"{")
    surrogate = (
        json.dumps(changed(trajectory_id="s"))
        .replace("I read.", "I \\ud83d\\u0000 read.")
        .replace('"read"', '"r\\u0000"')
    )
    write(tmp_path / "job", "surrogate.json", surrogate.encode())
    write(tmp_path, "newer.json", changed(extra={"rollbook": {"version": 2}}))
    write(tmp_path, "own.json", changed(extra={"rollbook": {"version": 1, "rollout": {"rollout_id": 1}}}))
    text = write(tmp_path, "notes.txt", b"notes")
    result = await import_atif(sqlite_store, tmp_path, text)
    assert (result.imported, result.skipped) == (3, 5)
    reasons = {Path(skip.place).name: skip.reason for skip in result.skips}
    assert set(reasons) == {"b.json", "c.json", "newer.json", "own.json", "notes.txt"}
    assert "'ATIF-v9'" in reasons["b.json"]
    assert "is not JSON" in reasons["c.json"]
    assert "extra.rollbook.version is 2" in reasons["newer.json"]
    assert "extra.rollbook.rollout.rollout_id: Input should be a valid string" in reasons["own.json"]
    again = await import_atif(sqlite_store, tmp_path)
    assert (again.imported, again.unchanged) == (0, 3)
    with pytest.raises(NotFound, match="nowhere"):
        atif_rollouts([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    "path, value, reason",
    [
        ("spans/0/span/name", None, r"extra\.rollbook\.spans\[0\]\.name"),
        ("attempt/status", "done", r"extra\.rollbook\.attempt\.status"),
    ],
)
async def test_our_documents_that_were_changed_wrongly_are_refused(
    path: str, value: Any, reason: str, sqlite_store: Store, tmp_path: Path
) -> None:
    rollout = await sqlite_store.start_rollout({})
    await _end(sqlite_store, rollout, ATTEMPTS["bare spans"], "succeeded")
    await export_store(sqlite_store, "atif", tmp_path / "export")
    (file,) = (tmp_path / "export").glob("*/*.json")
    document = json.loads(file.read_bytes())
    set_field(path, value)(document["extra"]["rollbook"])
    async with await open_store("memory://") as target:
        result = await import_atif(target, write(tmp_path, "changed.json", document))
    (skip,) = result.skips
    assert re.search(reason, skip.reason)


async def test_a_changed_message_of_our_document_is_imported(sqlite_store: Store, tmp_path: Path) -> None:
    rollout = await sqlite_store.start_rollout({})
    await _end(sqlite_store, rollout, ATTEMPTS["branches"], "succeeded")
    await export_store(sqlite_store, "atif", tmp_path / "export")
    (file,) = (tmp_path / "export").glob("*/*.json")
    content = file.read_bytes().replace(b'"message":"u"', b'"message":"corrected"')
    async with await open_store("memory://") as target:
        await import_atif(target, write(tmp_path, "changed.json", content))
        (twin,) = await target.query_rollouts()
        calls = TraceToMessages().adapt(await target.query_spans(twin.rollout_id))
    assert [call["messages"][1]["content"] for call in calls[:3]] == ["corrected"] * 3
