"""Wrong options of scheduled operations are refused before the server listens."""

from __future__ import annotations

import re
from datetime import time
from pathlib import Path
from typing import Any

import pytest

from store.cli.server_settings import schedule_of
from store.errors import Invalid
from store.operations.schedule import BackupPlan, Schedule
from tests.cli.conftest import runner

NOTHING: dict[str, Any] = {
    "sample_seconds": None,
    "verify_at": None,
    "backup_seconds": None,
    "backup_dir": None,
    "backup_keep": 7,
    "retention_seconds": None,
    "retention": None,
    "takes_options": True,
}


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--verify-at", "25:00"], "is not a time of day"),
        (["--verify-at", "3"], "is not a time of day"),
        (["--verify-sample-every", "often"], "is not a duration"),
        (["--verify-sample-every", "0s"], "is not a duration"),
        (["--backup-every", "1d", "--backup-dir", "{none}"], "does not exist"),
        (["--backup-keep", "0"], "--backup-keep"),
    ],
)
def test_a_wrong_value_is_a_wrong_usage(
    options: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [each.format(none=tmp_path / "none") for each in options]
    refused = runner(f"sqlite:///{tmp_path / 'none.db'}", monkeypatch)("serve", "--port", "0", *given)
    assert refused.code == 2
    assert reason in re.sub(r"[│\s]+", " ", refused.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given, option",
    [
        ({"backup_seconds": 60.0}, "--backup-every"),
        ({"backup_dir": Path()}, "--backup-every"),
        ({"retention_seconds": 60.0}, "--retention-every"),
        ({"retention_seconds": 60.0, "retention": Path("none.toml")}, "retention"),
        ({"backup_seconds": 60.0, "backup_dir": Path(), "takes_options": False}, "--backup-dir"),
        ({"retention_seconds": 60.0, "retention": Path(), "takes_options": False}, "--retention"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(given: dict[str, Any], option: str) -> None:
    options: dict[str, Any] = {**NOTHING, **given}
    with pytest.raises(Invalid) as refused:
        schedule_of(**options)
    assert refused.value.field == option


def test_the_options_are_a_schedule() -> None:
    assert schedule_of(**NOTHING).operations == []
    given: dict[str, Any] = {**NOTHING, "sample_seconds": 3600.0, "verify_at": time(3)}
    assert schedule_of(**given) == Schedule()
    more: dict[str, Any] = {**given, "backup_seconds": 60.0, "backup_dir": Path("backups")}
    found = schedule_of(**more)
    assert found.operations == ["verify", "verify_sample", "backup"]
    # The working directory of the process of a backup is not part of its contract.
    assert found.backup == BackupPlan(Path("backups").absolute(), 7)
