"""Formats: their files have the same content everywhere, and the programs for which they are made read them."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from store import open_store
from store.adapters.messages import TraceToMessages
from store.errors import Invalid
from store.exports import SCHEMA_VERSION, export_store
from store.exports.records import RolloutRecord
from store.exports.tables import TABLES, tables_of
from store.exports.tables.conversations import conversations
from store.interface.store import Store
from store.models import AttemptedRollout, Span
from store.models.flat_spans import flat_span
from tests.exports.agents import call, span
from tests.exports.conftest import content

FORMATS = ("parquet", "jsonl", "hf", "sft", "otlp", "atif")


@pytest.fixture(scope="session")
def expected(sqlite_url: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """A function that returns the files of a format, exported from SQLite."""
    import asyncio

    async def export(form: str, directory: Path) -> None:
        async with await open_store(sqlite_url, read_only=True) as store:
            await export_store(store, form, directory)

    directory = tmp_path_factory.mktemp("expected")
    for form in FORMATS:
        asyncio.run(export(form, directory / form))
    return lambda form: content(directory / form)


@pytest.mark.parametrize("form", FORMATS)
async def test_an_export_has_the_same_bytes_from_every_store(
    form: str, any_store: Store, expected: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    report = await export_store(any_store, form, tmp_path / "export")
    files = content(tmp_path / "export")
    assert files == expected(form)
    manifest = orjson.loads(files["manifest.json"])
    assert manifest["position"] == report.position
    listed = {file["path"] for file in manifest["files"]}
    if form == "atif":
        lines = [orjson.loads(line) for line in files["part-00000.jsonl"].splitlines()]
        assert [(line["sha256"], line["bytes"]) for line in lines] == [
            (sha256(files[line["file"]]).hexdigest(), len(files[line["file"]])) for line in lines
        ]
        listed |= {line["file"] for line in lines}
    assert listed == files.keys() - {"manifest.json", "README.md", "views.sql"}


async def test_parquet_has_types_and_describes_itself(store: Store, tmp_path: Path) -> None:
    pq: Any = pytest.importorskip("pyarrow.parquet")
    report = await export_store(store, "parquet", tmp_path / "parquet")
    await export_store(store, "jsonl", tmp_path / "jsonl")
    for table in TABLES:
        (file,) = (tmp_path / "parquet" / table.name).iterdir()
        schema = pq.read_schema(file)
        assert [field.name for field in schema] == [column.name for column in table.columns]
        assert {field.name: str(field.type) for field in schema if "time" in field.name} == {
            column.name: "timestamp[us, tz=UTC]" for column in table.columns if "time" in column.name
        }
        assert schema.metadata[b"rollbook.schema_version"] == str(SCHEMA_VERSION).encode()
        assert schema.metadata[b"rollbook.position"] == str(report.position).encode()
        assert schema.metadata[b"rollbook.store_id"] == report.store_id.encode()
        (lines,) = (tmp_path / "jsonl" / table.name).iterdir()
        expected = [orjson.loads(line) for line in lines.read_bytes().splitlines()]
        assert [_as_line(table.name, row) for row in pq.read_table(file).to_pylist()] == expected


def _as_line(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Parquet with the values that it has in a line of JSON."""
    (declared,) = tables_of([table])
    for column in declared.columns:
        value = row[column.name]
        if value is not None and column.kind == "json":
            row[column.name] = orjson.loads(value)
        elif isinstance(value, datetime):
            row[column.name] = value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return row


async def test_an_empty_export_has_the_columns_of_every_table(tmp_path: Path) -> None:
    pq: Any = pytest.importorskip("pyarrow.parquet")
    async with await open_store("memory://") as store:
        await export_store(store, "parquet", tmp_path / "export")
        await export_store(store, "hf", tmp_path / "hf")
    for table in TABLES:
        assert pq.read_table(tmp_path / "export" / table.name).num_rows == 0
    assert content(tmp_path / "hf").keys() == {"README.md", "manifest.json"}


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hugging Face's library, without a network."""
    module = pytest.importorskip("datasets")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert os.environ.get("HF_HUB_OFFLINE", "1")
    return module


@pytest.mark.filterwarnings("ignore")
async def test_datasets_load_the_folder(datasets: Any, store: Store, tmp_path: Path) -> None:
    await export_store(store, "hf", tmp_path / "hf", split={"train": 0.5, "val": 0.5})
    folder = datasets.load_dataset(str(tmp_path / "hf"))
    assert set(folder) == {"train", "val"}
    rollouts = [*folder["train"], *folder["val"]]
    assert sorted(row["rollout_id"] for row in rollouts) == sorted(
        rollout.rollout_id for rollout in await store.query_rollouts()
    )
    groups = [{row["group_id"] for row in folder[split]} for split in ("train", "val")]
    assert groups[0].isdisjoint(groups[1])
    assert sorted(row["labels"] for row in rollouts)[-2:] == [[], ["good, mostly", "reviewed"]]
    assert all(isinstance(row["input"], dict) and row["start_time"].tzinfo is not None for row in rollouts)
    for table in TABLES:
        loaded = datasets.load_dataset(str(tmp_path / "hf"), table.name, split="train", streaming=True)
        assert list(next(iter(loaded))) == [column.name for column in table.columns]


@pytest.mark.filterwarnings("ignore")
async def test_datasets_load_conversations_with_their_tool_calls(datasets: Any, store: Store, tmp_path: Path) -> None:
    await export_store(store, "sft", tmp_path / "sft")
    row = datasets.load_dataset(str(tmp_path / "sft"), split="train")[0]
    assert row["loss_mask"] == [0, 0, 1, 0, 1]
    use = row["messages"][2]
    assert use["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 0, "b": 0}}
    # A message has only its own fields, as chat templates expect.
    assert row["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [message.get("weight") for message in row["messages"]] == [None, None, 1, None, 1]
    assert row["reward"] == 0.0


class Attempt:
    rollout_id, attempt_id = "ro", "at"


def test_each_response_has_a_loss_in_one_conversation() -> None:
    system = {"role": "system", "content": "s"}
    user, second = {"role": "user", "content": "u"}, {"role": "user", "content": "v"}
    one, two, other = ({"role": "assistant", "content": text} for text in ("1", "2", "3"))
    record = _record(
        call(Attempt, 1, [system, user], one),
        call(Attempt, 2, [system, user, one, second], two),
        # The agent goes back and asks again.
        call(Attempt, 3, [system, user, one, second], other),
        call(Attempt, 4, [system], two),
    )
    assert [(len(line.messages), line.mask) for line in conversations(record)] == [
        (5, [0, 0, 1, 0, 1]),
        (5, [0, 0, 0, 0, 1]),
        (2, [0, 1]),
    ]
    responses = sum(sum(line.mask) for line in conversations(record))
    assert responses == len(TraceToMessages().adapt(record.span_models)) == 4


def _record(*spans: Span) -> RolloutRecord:
    attempt = {"rollout_id": "ro", "attempt_id": "at", "sequence_id": 1, "start_time": 0.0}
    rollout = AttemptedRollout.model_validate(
        {"rollout_id": "ro", "input": None, "start_time": 0.0, "attempt": attempt}
    )
    return RolloutRecord(rollout, 1, spans=[flat_span(span) for span in spans])


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
async def test_a_value_that_does_not_fit_is_named(form: str, tmp_path: Path) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    async with await open_store("memory://") as store:
        rollout = await store.start_rollout({})
        await store.add_span(span(rollout.attempt, 1, {}, span_id="ab", end_time=1e300))
        with pytest.raises(Invalid, match=r"spans\.end_time: 1e\+300 of rollout_id ro-\S+, span_id ab .* redact"):
            await export_store(store, form, tmp_path / "export", tables=["spans"])
        await export_store(
            store, form, tmp_path / "export", tables=["spans"], redact=["spans.end_time"], overwrite=True
        )


async def test_parquet_without_pyarrow_names_the_extra(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(Invalid, match=r"pip install 'rollbook\[export\]'"):
        await export_store(store, "parquet", tmp_path / "export")
    assert not (tmp_path / "export").exists()
