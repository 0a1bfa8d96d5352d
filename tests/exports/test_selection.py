"""Selection of an export: conditions, a moment of the past, splits, and fields that are left out."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from store import open_store
from store.errors import Invalid
from store.exports import export_sqlite, export_store, to_arrow
from store.exports import source as sources
from store.interface.store import Store
from store.models.queries import RolloutQuery
from tests.exports.agents import conversation, fill
from tests.exports.conftest import content


async def ids_of(store: Store, directory: Path, query: RolloutQuery) -> list[str]:
    """Return the ids of the exported rollouts."""
    await export_store(store, "jsonl", directory, query=query, tables=["rollouts"], overwrite=True)
    lines = content(directory)["rollouts/part-00000.jsonl"].splitlines()
    return [orjson.loads(line)["rollout_id"] for line in lines]


@pytest.mark.parametrize(
    "conditions",
    [
        {"status_in": ["queuing"]},
        {"group_in": ["task 1", "task 3"], "mode_in": ["val"]},
        {"reward_min": 0.5, "step_in": [0]},
        {"group_in": ["task 1"], "status_in": ["queuing"], "filter_logic": "or"},
        {"status_in": []},
    ],
    ids="+".join,
)
async def test_conditions_select_the_rollouts_that_a_query_returns(
    conditions: dict[str, Any], any_store: Store, tmp_path: Path
) -> None:
    query = RolloutQuery(**conditions)
    expected = [rollout.rollout_id for rollout in await any_store.find_rollouts(query)]
    assert await ids_of(any_store, tmp_path, query) == expected
    assert len(expected) < 8


async def test_an_export_of_the_past_is_not_changed_by_later_events(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'run.db'}"
    await fill(url)
    async with await open_store(url) as store:
        before = await export_store(store, "jsonl", tmp_path / "before")
        (rollout,) = await store.dequeue_many_rollouts(limit=1)
        await store.add_many_spans(conversation(rollout.attempt, 7))
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
        first = (await store.query_rollouts(limit=1))[0].rollout_id
        await store.update_rollout(first, status="cancelled", metadata={})
        await store.enqueue_rollout("later")
        await store.annotations.annotate(first, add_labels=["late"], remove_labels=["reviewed"])
        query = RolloutQuery(as_at=before.position)
        await export_store(store, "jsonl", tmp_path / "after", query=query)
        assert content(tmp_path / "after") == content(tmp_path / "before")
        now = await export_store(store, "jsonl", tmp_path / "now")
        assert (before.rollouts, now.rollouts) == (8, 9)


async def test_bytes_do_not_depend_on_the_sizes_of_reads(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, rows = ["rollouts", "spans", "events"], 10
    await export_store(store, "jsonl", tmp_path / "usual", tables=tables, rows_per_file=rows)
    assert len(content(tmp_path / "usual")) > 6
    monkeypatch.setattr(sources, "_LISTED_AT_ONCE", 3)
    for size in (1, 2_000):
        monkeypatch.setattr(sources, "BYTES_AT_ONCE", size)
        directory = tmp_path / f"{size} bytes"
        await export_store(store, "jsonl", directory, tables=tables, rows_per_file=rows)
        assert content(directory) == content(tmp_path / "usual")


async def test_splits_follow_a_field(store: Store, tmp_path: Path) -> None:
    await export_store(store, "jsonl", tmp_path, split_by="step", tables=["rollouts"])
    files = content(tmp_path)
    for step in (0, 1):
        rows = [orjson.loads(line) for line in files[f"rollouts/step_{step}-00000.jsonl"].splitlines()]
        assert [row["step"] for row in rows] == [step] * 4


async def test_fractions_never_divide_a_group(store: Store, tmp_path: Path) -> None:
    await export_store(store, "jsonl", tmp_path, split={"train": 0.5, "val": 0.5}, tables=["rollouts"])
    groups = {
        name: {orjson.loads(line)["group_id"] for line in text.splitlines()}
        for name, text in content(tmp_path).items()
        if name != "manifest.json"
    }
    assert sorted(group for names in groups.values() for group in names) == [f"task {number}" for number in range(4)]


@pytest.mark.parametrize(
    "arguments,problem",
    [
        ({"split": {"train": 0.5}}, "sum to 0.5"),
        ({"split": {"all": 1}}, "'all' is not a name"),
        ({"split": {"a": 1.5}}, "fraction 1.5"),
        ({"split": {"a": 1}, "split_by": "mode"}, "not both"),
        ({"split_by": "status"}, "'status' is not one of"),
        ({"tables": ["rollout"]}, "'rollout' is not a table"),
        ({"tables": []}, "is empty"),
        ({"redact": ["secrets"]}, "'secrets' is no field"),
        ({"redact": ["spans.nothing"]}, "spans has no column 'nothing'"),
        ({"redact": ["spans.span_id"]}, "identifies a row"),
        ({"redact": ["nothing.input"]}, "no table 'nothing'"),
        ({"rows_per_file": 0}, "at least 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_invalid_argument_is_refused_before_anything_is_written(
    arguments: dict[str, Any], problem: str, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(Invalid, match=problem):
        await export_store(store, "jsonl", tmp_path / "export", **arguments)
    assert not (tmp_path / "export").exists()
    with pytest.raises(Invalid, match="'csv' is not a format"):
        await export_store(store, "csv", tmp_path / "export")


async def test_redacted_fields_are_in_no_file(store: Store, tmp_path: Path) -> None:
    def count(directory: Path, text: bytes) -> int:
        return sum(file.count(text) for file in content(directory).values())

    await export_store(store, "jsonl", tmp_path / "plain")
    fields = ["input", "metadata", "attributes.gen_ai.prompt.*", "attributes.exception.message", "rewards.value"]
    with pytest.raises(Invalid, match=r"rewards\.value identifies"):
        await export_store(store, "jsonl", tmp_path / "redacted", redact=fields)
    fields[-1] = "messages.content"
    await export_store(store, "jsonl", tmp_path / "redacted", redact=fields)
    for text in (b"What is 3+3?", b"secret", b"rollbook.group"):
        assert count(tmp_path / "plain", text) > 0
        assert count(tmp_path / "redacted", text) == 0
    rollouts = [orjson.loads(line) for line in content(tmp_path / "redacted")["rollouts/part-00000.jsonl"].splitlines()]
    # The group is a column of its own.
    assert [row["group_id"] for row in rollouts] == [f"task {number // 2}" for number in range(8)]
    assert b'"content":"It is 12."' not in content(tmp_path / "redacted")["messages/part-00000.jsonl"]
    assert b"It is 12." in content(tmp_path / "redacted")["spans/part-00000.jsonl"]


async def test_missing_rewards_are_exported_as_the_choice_in_the_manifest(tmp_path: Path) -> None:
    async with await open_store("memory://") as store:
        for status in ("failed", "succeeded"):
            rollout = await store.start_rollout(status)
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)
        await store.enqueue_rollout("queued")
        for unrewarded, expected in {
            "out": [None, None, None],
            "failed:-1": [-1.0, None, None],
            "ended:0": [0.0, 0.0, None],
        }.items():
            directory = tmp_path / unrewarded
            await export_store(store, "jsonl", directory, tables=["rollouts", "attempts"], unrewarded=unrewarded)
            for table, rewards in (("rollouts", expected), ("attempts", expected[:2])):
                lines = content(directory)[f"{table}/part-00000.jsonl"].splitlines()
                assert [orjson.loads(line)["reward"] for line in lines] == rewards
            command = orjson.loads(content(directory)["manifest.json"])["command"]
            assert command.get("unrewarded", "out") == unrewarded
        report = await export_sqlite(store, tmp_path / "tables.db", tables=["rollouts"], unrewarded="failed:0")
        with closing(sqlite3.connect(report.database)) as connection:
            rows = connection.execute("SELECT reward, unrewarded FROM rollouts, export_origin").fetchall()
        assert rows == [(0.0, "failed:0"), (None, "failed:0"), (None, "failed:0")]
        frame = await to_arrow(store, "attempts", unrewarded="ended:1")
        assert frame.column("reward").to_pylist() == [1.0, 1.0]
        assert frame.schema.metadata[b"rollbook.unrewarded"] == b"ended:1"
        for form in ("otlp", "atif"):
            with pytest.raises(Invalid, match="recorded rewards only"):
                await export_store(store, form, tmp_path / form, unrewarded="failed:0")
        with pytest.raises(Invalid, match="not a choice"):
            await export_store(store, "jsonl", tmp_path / "new", unrewarded="zero")
