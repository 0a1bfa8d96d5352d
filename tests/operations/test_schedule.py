"""Due times of operations, and the content of a file with a policy."""

from __future__ import annotations

import os
import time as system_time
from collections.abc import Iterator
from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from store.db.queries.operation_runs import Operation, OperationRun
from store.errors import Invalid
from store.operations.policy import RetentionPolicy
from store.operations.schedule import RETRY_SECONDS, START_SECONDS, BackupPlan, Schedule, read_policy

HOUR, DAY = 3600.0, 86_400.0


def micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def at(text: str) -> int:
    return micros(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local time of a place whose clocks are changed in spring and autumn."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    system_time.tzset()
    yield
    os.environ.pop("TZ", None)
    monkeypatch.undo()
    system_time.tzset()


STARTED = at("2026-11-20T12:00:00")
SCHEDULE = Schedule(backup_seconds=DAY, backup=BackupPlan(Path("backups"), 7))


def next_at(
    operation: Operation, last: OperationRun | None, schedule: Schedule = SCHEDULE, started_at: int = STARTED
) -> int | None:
    return schedule.next_at(operation, last, started_at=started_at, created_at=STARTED)


def test_by_default_a_server_only_verifies() -> None:
    assert Schedule().operations == ["verify", "verify_sample"]
    assert Schedule(sample_seconds=None, verify_at=None).operations == []
    assert next_at("retention", None) is None


def test_a_policy_or_a_directory_without_an_interval_is_no_operation() -> None:
    policy = RetentionPolicy.of(older_than=1)
    assert "retention" not in Schedule(retention=policy).operations
    assert "retention" in Schedule(retention=policy, retention_seconds=DAY).operations


def test_an_operation_that_was_never_run_is_due_soon_after_the_start() -> None:
    assert next_at("verify_sample", None) == STARTED + micros(START_SECONDS)
    assert next_at("verify_sample", None, Schedule(sample_seconds=0.5)) == STARTED + micros(0.5)


def test_the_interval_is_counted_from_the_start_of_the_last_run_of_any_server() -> None:
    last = OperationRun("backup", attempted_at=STARTED - micros(HOUR))
    assert next_at("backup", last) == STARTED - micros(HOUR) + micros(DAY)


def test_a_missed_run_is_made_up_for_after_the_start() -> None:
    last = OperationRun("backup", attempted_at=STARTED - micros(3 * DAY))
    assert next_at("backup", last) == STARTED + micros(START_SECONDS)


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    "last, expected",
    [
        ("2026-11-19T02:00:01", "2026-11-20T02:00:00"),
        ("2026-11-20T01:59:59", "2026-11-20T02:00:00"),
        # The clocks are changed from 02:00 to 03:00 at 01:00 UTC, and back at 01:00 UTC.
        ("2026-03-28T02:00:01", "2026-03-29T01:00:00"),
        ("2026-10-24T01:00:01", "2026-10-25T02:00:00"),
    ],
)
def test_the_daily_verification_is_due_at_the_local_time(last: str, expected: str) -> None:
    run = OperationRun("verify", attempted_at=at(last))
    assert next_at("verify", run, Schedule(verify_at=time(3)), at("2026-01-01T00:00:00")) == at(expected)


@pytest.mark.usefixtures("berlin")
def test_the_first_daily_verification_waits_for_its_time() -> None:
    assert next_at("verify", None) == at("2026-11-21T02:00:00")
    assert next_at("verify", None, started_at=at("2026-11-21T01:59:00")) == at("2026-11-21T02:00:00")


@pytest.mark.usefixtures("berlin")
def test_the_first_daily_verification_is_made_up_for_if_no_server_was_on_at_its_time() -> None:
    later = at("2026-11-21T08:00:00")
    assert next_at("verify", None, started_at=later) == later + micros(START_SECONDS)


def test_an_interrupted_run_is_repeated_after_its_lease_and_a_pause() -> None:
    began = STARTED + micros(HOUR)
    last = OperationRun("backup", runner="host:1", lease_until=began + micros(120), attempted_at=began)
    assert next_at("backup", last) == began + micros(RETRY_SECONDS)
    run = OperationRun("backup", runner="host:1", lease_until=began + micros(HOUR), attempted_at=began)
    assert next_at("backup", run) == began + micros(HOUR)
    quick = Schedule(sample_seconds=0.5)
    assert next_at("verify_sample", last, quick) == began + micros(120)


def test_a_failed_run_is_tried_again_at_the_next_time() -> None:
    last = OperationRun("backup", attempted_at=STARTED, failed_at=STARTED + 5, error="the disk is full")
    assert next_at("backup", last) == STARTED + micros(DAY)


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('older_than = 2592000\nstatuses = ["succeeded", "failed"]\nwithout_labels = ["keep"]\n')
    expected = RetentionPolicy.of(older_than=30 * DAY, statuses=("succeeded", "failed"), without_labels=("keep",))
    assert read_policy(file) == expected


@pytest.mark.parametrize(
    "text, reason",
    [
        (None, "cannot be read"),
        ("older_than = ", "is not TOML"),
        ("", "at least one condition"),
        ("older = 5", "older"),
        ('older_than = "soon"', "older_than"),
        ("older_than = -1", "older_than"),
        ('statuses = ["running"]', "statuses"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_file_and_the_reason(
    text: str | None, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Invalid) as refused:
        read_policy(file)
    assert str(file) in str(refused.value)
    assert reason in str(refused.value)
