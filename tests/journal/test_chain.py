"""The bytes of the hash chain, which can never change."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from store.journal import log_rows
from store.journal.log_rows import EventRow

GOLDEN = Path(__file__).with_name("golden") / "commit.json"


def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


def rows() -> list[EventRow]:
    """The events of the golden commit, as rows of `events`."""
    return [
        EventRow._make(
            bytes.fromhex(value) if name == "body_hash" and value else value for name, value in event.items()
        )
        for event in golden()["events"]
    ]


def test_digests_of_golden_events_are_unchanged() -> None:
    assert [log_rows.event_digest(row).hex() for row in rows()] == golden()["digests"]


def test_chain_hash_of_the_golden_commit_is_unchanged() -> None:
    commit = golden()["commit"]
    previous = bytes.fromhex(golden()["previous"])
    numbers = (commit["commit_id"], commit["first_position"], commit["last_position"], commit["recorded_at"])
    digests = [log_rows.event_digest(row) for row in rows()]
    assert log_rows.link(previous, *numbers, digests).hex() == commit["chain_hash"]


def test_the_bytes_of_an_event_are_those_the_format_names() -> None:
    def integer(value: int | None) -> bytes:
        return b"\xff" * 4 if value is None else struct.pack(">q", value)

    def string(value: str | bytes | None) -> bytes:
        if value is None:
            return b"\xff" * 4
        raw = value.encode() if isinstance(value, str) else value
        return struct.pack(">I", len(raw)) + raw

    for row, digest in zip(rows(), golden()["digests"], strict=True):
        position, _, stream, version, command, type_, shape, at, actor, cause, data, body_hash = row
        text = (
            integer(position)
            + string(stream)
            + integer(version)
            + integer(command)
            + string(type_)
            + integer(shape)
            + integer(at)
            + string(actor)
            + integer(cause)
            + string(data)
            + string(body_hash)
        )
        assert hashlib.sha256(text).hexdigest() == digest


def test_the_bytes_of_a_commit_are_those_the_format_names() -> None:
    commit = golden()["commit"]
    numbers = [commit[name] for name in ("commit_id", "first_position", "last_position", "recorded_at")]
    text = bytes.fromhex(golden()["previous"]) + struct.pack(">4q", *numbers)
    text += b"".join(bytes.fromhex(digest) for digest in golden()["digests"])
    assert hashlib.sha256(text).hexdigest() == commit["chain_hash"]


def test_the_chain_begins_with_zeros() -> None:
    assert bytes(32) == log_rows.GENESIS


def test_the_golden_commit_has_nulls_values_and_letters_beyond_ascii() -> None:
    events = golden()["events"]
    for name in ("actor", "cause", "body_hash"):
        assert {event[name] is None for event in events} == {True, False}
    assert not json.dumps(events, ensure_ascii=False).isascii()


@pytest.mark.parametrize("index", [index for index in range(12) if index != 1])
def test_every_part_of_an_event_counts(index: int) -> None:
    row: list[Any] = list(rows()[-1])
    before = log_rows.event_digest(EventRow._make(row))
    row[index] = row[index] + 1 if isinstance(row[index], int) else None if index in {8, 11} else "other"
    assert log_rows.event_digest(EventRow._make(row)) != before


def test_values_cannot_move_between_neighbours() -> None:
    row: list[Any] = list(rows()[-1])
    row[2], row[5] = "rollout/a", "bc"
    one = log_rows.event_digest(EventRow._make(row))
    row[2], row[5] = "rollout/ab", "c"
    assert log_rows.event_digest(EventRow._make(row)) != one
