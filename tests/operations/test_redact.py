"""`redact`: the payload of one event is removed, also from the files of the database, and the log proves the rest."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store import Invalid, NotFound, open_store
from store.db.drivers.sqlite import writer as sqlite_writer
from store.db.drivers.sqlite.writer import connect as connect_writer
from store.db.tables.core import metadata
from store.models.scanners import NewScan, NewScanner, ScanError
from store.operations import Redaction, RedactionReport, RetentionPolicy, Search, forget, redact, remove_payload
from store.semconv import DROPPED
from store.server.partitions import Partitions
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.cli.conftest import runner
from tests.operations.payloads import ON_SQLITE, SECRET, Place, fill, opened, verified
from tests.server.api import speaking_to

pytestmark = pytest.mark.slow


@pytest.fixture
async def place(durable_url: str, clock: ManualClock) -> Place:
    return await fill(durable_url, clock)


@pytest.fixture
async def file(tmp_path: Path, clock: ManualClock) -> Place:
    return await fill(f"sqlite:///{tmp_path / 'file.db'}", clock)


async def redacted(place: Place, rollout_id: str, *, rewrite: bool = False, **values: Any) -> RedactionReport:
    redaction = Redaction.of(**{"reason": "requested", **values})
    return await redact(place.url, rollout_id, redaction, rewrite=rewrite, actor="cli", clock=place.clock)


def files_of(place: Place) -> list[Path]:
    path = Path(place.url.removeprefix("sqlite:///"))
    return [file for file in (path, *(Path(f"{path}{side}") for side in ("-wal", "-shm"))) if file.exists()]


def contains(place: Place, text: str) -> bool:
    return any(text.encode() in path.read_bytes() for path in files_of(place))


async def test_hashes_of_a_removed_input_stay_only_where_the_documentation_lists_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'guess.db'}"
    async with await open_store(url) as store:
        rollout = await store.enqueue_rollout({"answer": "yes"})
        (event,) = await store.log.history(rollout.rollout_id)
    assert event.body_hash is not None
    guess = hashlib.sha256(b'{"answer":"yes"}').hexdigest()
    assert event.data["input_sha256"] == guess
    await redact(url, rollout.rollout_id, Redaction.of(input=True, reason="requested"))
    places_of: dict[str, set[str]] = {guess: set(), event.body_hash: set()}
    with closing(sqlite3.connect(tmp_path / "guess.db")) as connection:
        for table in metadata.tables.values():
            for column in table.columns:
                for name, places in places_of.items():
                    value = f"CAST({column.name} AS BLOB)"
                    contained = f"instr({value}, CAST('{name}' AS BLOB)) OR instr({value}, X'{name}')"
                    if connection.execute(f"SELECT 1 FROM {table.name} WHERE {contained}").fetchone():
                        places.add(f"{table.name}.{column.name}")
    assert places_of == {guess: {"events.data", "rollouts.input_sha256"}, event.body_hash: {"events.body_hash"}}


async def test_the_payload_of_a_span_of_a_running_rollout_is_removed(place: Place) -> None:
    before = await verified(place.url)
    async with await opened(place) as store:
        (span,) = await store.query_spans(place.active)
    done = await redacted(place, place.active, span_id=span.span_id)
    assert (len(done.events), done.bodies, done.is_clean) == (1, 1, True)
    assert done.events[0].data["name"] == span.name
    after = await verified(place.url)
    assert (after.state_hash, after.events) == (before.state_hash, before.events + 1)
    async with await opened(place) as store:
        (read,) = await store.query_spans(place.active)
        assert (read.name, read.attributes) == (span.name, {DROPPED: True})
        rollout = await store.get_rollout_by_id(place.active)
        assert rollout is not None
        assert rollout.input == {"text": SECRET}
        event = [event async for event in store.log.tail()][-1]
        assert (event.stream, event.type, event.actor) == ("store", "store.bodies_dropped", "cli")
        assert (event.data["policy"], event.data["reason"]) == ("redact", "requested")
        # The running rollout goes on.
        attempt = (await store.query_attempts(place.active))[0]
        await store.add_span(make_span(attempt, 2))
        await store.update_attempt(place.active, attempt.attempt_id, status="succeeded")
    # Repeating the call removes nothing and raises no error.
    again = await redacted(place, place.active, span_id=span.span_id, rewrite=True)
    assert (again.bodies, again.is_clean) == (0, True)


@pytest.mark.parametrize("choice", [{"input": True}, {"metadata": True}, {"event": 1}, {"everything": True}])
async def test_no_file_contains_the_payload_afterwards(file: Place, choice: dict[str, Any]) -> None:
    plain = f"{SECRET}{SECRET}"
    async with await opened(file) as store:
        attempt = (await store.start_rollout({"text": plain}, metadata={"who": "Nobody"})).attempt
        for number in range(1, 40):
            await store.add_span(make_span(attempt, number, attributes={"number": number}))
    assert contains(file, plain)
    await redacted(file, attempt.rollout_id, **choice)
    assert not contains(file, plain)
    async with await opened(file) as store:
        rollout = await store.get_rollout_by_id(attempt.rollout_id)
        assert rollout is not None
        assert (rollout.input, rollout.metadata) == (None, {DROPPED: True})
        spans = await store.query_spans(attempt.rollout_id, limit=-1)
        assert all((span.attributes == {DROPPED: True}) == ("everything" in choice) for span in spans)
    await verified(file.url)


@pytest.mark.parametrize("is_by_text", [False, True])
async def test_explanations_of_scans_are_removed_with_their_rollout(file: Place, is_by_text: bool) -> None:
    plain = f"{SECRET}{SECRET}"
    async with await opened(file) as store:
        attempt = (await store.start_rollout({"n": 1})).attempt
        await store.scanners.add(NewScanner(name="hacks", version="v1", kind="regex", definition={"pattern": "a"}))
        ids: dict[str, Any] = {"rollout_id": attempt.rollout_id, "attempt_id": attempt.attempt_id}
        failure = NewScan(**ids, error=ScanError(type="ValueError", message=plain))
        await store.scanners.record("hacks", "v1", [failure])
        await store.scanners.record("hacks", "v1", [NewScan(**ids, is_match=True, explanation=f"it says {plain}")])
    assert contains(file, plain)
    if is_by_text:
        await forget(file.url, Search.of(text=plain), reason="requested", clock=file.clock)
    else:
        await redacted(file, attempt.rollout_id, everything=True)
    assert not contains(file, plain)
    async with await opened(file) as store:
        (scan,) = await store.scanners.query_scans(attempt.rollout_id)
        assert (scan.is_match, scan.explanation) == (True, None)
        assert [item.rollout_id for item in await store.query_rollouts(scan_match="hacks@v1")] == [attempt.rollout_id]
    await verified(file.url)


async def test_compressed_payload_is_gone_too_while_a_server_has_the_file_open(file: Place) -> None:
    text = " ".join(f"account {number}" for number in range(400))
    async with await opened(file) as store:
        assert isinstance(store, SQLStore)
        rollout = await store.enqueue_rollout({"text": text})
        async with speaking_to(Partitions(store)) as api:
            assert text in (await api.get(f"/rollouts/{rollout.rollout_id}")).body.decode()
            (stored,) = _bodies(file, rollout.rollout_id)
            assert any(stored[:64] in path.read_bytes() for path in files_of(file))
            assert text.encode() in zlib.decompress(stored)
            done = await redacted(file, rollout.rollout_id, input=True)
            assert done.is_clean
            assert not any(stored[:64] in path.read_bytes() for path in files_of(file))
            for path in (f"/rollouts/{rollout.rollout_id}", "/rollouts", f"//ui/rollouts/{rollout.rollout_id}"):
                assert "account 7" not in (await api.get(path)).body.decode(), path
            page = (await api.get(f"//ui/rollouts/{rollout.rollout_id}")).body.decode()
            assert "Removed by policy: redact (requested)" in page
            claimed = await store.dequeue_many_rollouts(limit=10)
            assert [row.input for row in claimed if row.rollout_id == rollout.rollout_id] == [None]


def _bodies(place: Place, rollout_id: str) -> list[bytes]:
    with closing(sqlite3.connect(files_of(place)[0])) as connection:
        query = "SELECT body FROM bodies JOIN events USING (position) WHERE stream = ?"
        return [row[0] for row in connection.execute(query, (f"rollout/{rollout_id}",))]


async def test_a_copy_in_the_unused_part_of_a_page_is_removed_too(file: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite moves rows between pages when others are deleted, and may leave the old bytes behind."""

    def connect(path: Path, synchronous: str) -> sqlite3.Connection:
        connection = connect_writer(path, synchronous)
        connection.execute("PRAGMA secure_delete = OFF").fetchall()
        return connection

    # Some builds of SQLite overwrite deleted rows by default.
    monkeypatch.setattr(sqlite_writer, "connect", connect)
    ids: list[str] = []
    async with await opened(file) as store:
        for number in range(60):
            text = f"{SECRET}{SECRET}" if number % 7 == 3 else f"filler {number} " + "x" * (number % 5 * 100)
            ids.append((await store.start_rollout({"text": text})).rollout_id)
            if number % 7 != 3:
                await store.update_rollout(ids[-1], status="cancelled")
    await remove_payload(file.url, RetentionPolicy.of(statuses=("cancelled",)), apply=True)
    await remove_payload(file.url, RetentionPolicy.of(statuses=("failed", "succeeded")), apply=True)
    for number in range(3, 60, 7):
        await redacted(file, ids[number], input=True)
    assert not contains(file, f"{SECRET}{SECRET}")
    await verified(file.url)


@ON_SQLITE
async def test_a_text_that_another_event_has_too_stays_and_is_reported(place: Place) -> None:
    done = await redacted(place, place.active, everything=True)
    assert (done.blobs, done.kept_blobs) == (0, 1)
    done = await redacted(place, place.run, everything=True)
    assert done.blobs > 3
    assert done.kept_blobs == 0
    await verified(place.url)


@pytest.mark.parametrize(
    "values, field",
    [
        ({}, "choice"),
        ({"input": True, "metadata": True}, "choice"),
        ({"event": 0}, "event"),
        ({"input": True, "reason": ""}, "reason"),
        ({"input": True, "reason": "x" * 201}, "reason"),
        ({"input": True, "why": "x"}, "why"),
    ],
)
def test_an_invalid_choice_is_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        Redaction.of(**{"reason": "requested", **values})
    assert refused.value.field == field


async def test_redaction_requires_existing_payload_and_a_reason_without_it(file: Place) -> None:
    with pytest.raises(Invalid, match="reason"):
        await redacted(file, file.active, input=True, reason=f"they wrote {SECRET}")
    missing: list[tuple[str, dict[str, Any]]] = [
        ("ro-none", {"input": True}),
        (file.active, {"event": 99}),
        (file.active, {"span_id": "x"}),
    ]
    for rollout_id, choice in missing:
        with pytest.raises(NotFound):
            await redacted(file, rollout_id, **choice)
    async with await open_store(file.url) as store:
        assert (await store.log.history(file.active))[0].body is not None


def test_redact_command_previews_and_lists_remaining_facts(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = asyncio.run(fill(f"sqlite:///{tmp_path / 'file.db'}", clock))
    rollbook = runner(file.url, monkeypatch)
    refused = rollbook("redact", file.active, "--input", "--yes")
    assert refused.code == 2
    assert "--reason" in refused.err
    preview = rollbook("redact", file.active, "--input")
    assert "would remove 1 body, 0 blobs" in preview.out
    assert "nothing was removed; --yes" in preview.err
    assert SECRET in rollbook("show", file.active).out
    printed = rollbook("redact", file.active, "--input", "--reason", "requested", "--yes")
    assert printed.code == 0, printed.err
    assert "removed 1 body, 0 blobs" in printed.out
    assert "event 1 rollout.started" in printed.out
    assert SECRET not in printed.out
    assert rollbook("show", file.active).code == 0
    assert rollbook("history", file.active).code == 0
    assert rollbook("ls", "rollouts").code == 0
    assert rollbook("verify").code == 0
    counted = rollbook("retention", "--status", "succeeded,failed", "--older-than", "1m")
    assert "policy: older than 1m; status succeeded, failed" in counted.out
    assert "nothing was removed" in counted.err
    applied = rollbook("retention", "--status", "succeeded,failed", "--apply", "--vacuum", "--json")
    assert applied.json["rollouts"] == 2
    assert applied.json["size_after"] < applied.json["size_before"]
    assert rollbook("retention").code == 2
    assert rollbook("retention", "--max-size", "much").code == 2
    assert rollbook("retention", "--max-size", "10GB", "--vacuum").code == 2


def test_every_command_of_the_page_works(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = asyncio.run(fill(f"sqlite:///{tmp_path / 'file.db'}", clock))
    rollbook = runner(file.url, monkeypatch)
    page = Path(__file__).parents[2] / "docs/retention.md"
    section = page.read_text().partition("## Retention and redaction")[2].partition("\n## ")[0]
    typed = [line.removeprefix("$ rollbook ") for line in section.splitlines() if line.startswith("$ rollbook ")]
    assert len(typed) == 15
    # The archive takes the payload that the other commands would remove.
    typed.sort(key=lambda line: "archive" not in line)
    monkeypatch.chdir(tmp_path)
    span_id = rollbook("ls", "spans", file.active).table[0]["span"]
    ours = {"ro-4711": file.active, "00f067aa0ba902b7": span_id, "12": "3"}
    for line in typed:
        done = rollbook(*(ours.get(word, word) for word in shlex.split(line)))
        assert done.code == 0, (line, done.err)
    assert rollbook("verify").code == 0
