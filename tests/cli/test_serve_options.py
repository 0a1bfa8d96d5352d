"""Wrong options of scheduled operations and quotas are refused before the server listens."""

from __future__ import annotations

import re
from datetime import time
from pathlib import Path
from typing import Any

import pytest

from store.cli.serve_options import ScheduleOptions, ServerOptions
from store.errors import Invalid
from store.operations.schedule import BackupPlan, Schedule
from store.server.quotas import Quota
from tests.cli.conftest import runner

NO_OPTIONS: dict[str, Any] = {
    "verify_sample_every": None,
    "verify_at": None,
    "backup_every": None,
    "backup_dir": None,
    "backup_keep": 7,
    "retention_every": None,
    "retention": None,
    "compress_every": None,
    "archive_dir": None,
}


def schedule_of(*, has_operations: bool = True, **options: Any) -> Schedule:
    return ScheduleOptions(**options).schedule(has_operations=has_operations)


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--verify-at", "25:00"], "is not a time of day"),
        (["--verify-at", "3"], "is not a time of day"),
        (["--verify-sample-every", "often"], "is not a duration"),
        (["--verify-sample-every", "0s"], "is not a duration"),
        (["--backup-every", "1d", "--backup-dir", "{none}"], "does not exist"),
        (["--backup-keep", "0"], "--backup-keep"),
        (["--quota", ""], "'' is not a limit; write events=5000000,bytes=20GB,calls=500, or some of these"),
        (["--quota", "rows=5"], "'rows=5' is not a limit; write events=5000000"),
        (["--quota", "events=5,"], "'' is not a limit; write events=5000000"),
        (["--quota", "events"], "'' is not a limit for events; write events=500, or events=none"),
        (["--quota", "events=5M"], "'5M' is not a limit for events; write events=500, or events=none"),
        (["--quota", "calls=0"], "'0' is not a limit for calls; write calls=500, or calls=none"),
        (["--quota", "calls=-1"], "'-1' is not a limit for calls"),
        (["--quota", "calls=0.5"], "'0.5' is not a limit for calls"),
        (["--quota", "bytes=20"], "'20' is not a size; write a number with a unit"),
        (["--quota", "bytes=0GB"], "'0GB' is not a limit for bytes; write bytes=20GB, or bytes=none"),
        (["--quota", "calls=5,calls=6"], "'calls=5,calls=6' has two limits for calls; give one"),
        (["--quota", "Run 7:calls=5"], "no partition can be named 'Run 7'; write calls=50, or run_7:calls=50"),
        (["--quota", ":calls=5"], "no partition can be named ''"),
        (["--public-url", "rollbook.example.com"], "'rollbook.example.com' is not a URL; write https://host"),
        (["--quota", "calls=5", "--quota", "events=no"], "'no' is not a limit for events"),
    ],
)
def test_a_wrong_value_is_a_wrong_usage(
    options: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [option.format(none=tmp_path / "none") for option in options]
    refused = runner(f"sqlite:///{tmp_path / 'none.db'}", monkeypatch)("serve", "--port", "0", *arguments)
    assert refused.code == 2
    assert reason in re.sub(r"[│\s]+", " ", refused.err)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_that_is_given_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = runner(f"sqlite:///{tmp_path / 'none.db'}", monkeypatch)
    one = serve("serve", "--port", "0", "--quota", "calls=5", "--quota", "events=5,calls=6")
    assert (one.code, "--quota: calls is given twice for all partitions; give it once" in one.err) == (2, True)
    two = serve("serve", "--port", "0", "--quota", "run_7:calls=5", "--quota", "run_7:calls=5")
    assert (two.code, "calls is given twice for the partition 'run_7'" in two.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_quotas_come_from_the_environment_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve = runner(f"sqlite:///{tmp_path / 'none.db'}", monkeypatch)
    file = tmp_path / "rollbook.toml"
    file.write_text('[serve]\nquota = ["calls=5", "run_7:calls=many"]\n')
    monkeypatch.setenv("ROLLBOOK_CONFIG", str(file))
    assert "'many' is not a limit for calls" in re.sub(r"[│\s]+", " ", serve("serve", "--port", "0").err)
    monkeypatch.setenv("ROLLBOOK_SERVE_QUOTA", "calls=5 run_7:events=few")
    assert "'few' is not a limit for events" in re.sub(r"[│\s]+", " ", serve("serve", "--port", "0").err)


def test_address_in_messages_is_the_public_url_or_the_listening_address() -> None:
    assert ServerOptions(public_url="https://rollbook.example.com/a/").base_url(1) == "https://rollbook.example.com/a"
    assert ServerOptions().base_url(4747) == "http://127.0.0.1:4747"
    tls = ServerOptions(tls_cert=Path("cert.pem"), tls_key=Path("key.pem"), host="::1")
    assert tls.base_url(443) == "https://[::1]:443"


def test_a_partition_has_its_own_limits_and_otherwise_the_default() -> None:
    assert ServerOptions().quotas() == (Quota(), {})
    values: list[Any] = [
        ("run_7", {"calls": 50}),
        (None, {"events": 10, "calls": 500}),
        ("run_8", {"events": None, "calls": None}),
        ("run_7", {"bytes": 1000}),
    ]
    default, overrides = ServerOptions(quota=values).quotas()
    assert default == Quota(events=10, calls=500)
    assert overrides == {"run_7": Quota(events=10, bytes=1000, calls=50), "run_8": Quota()}


@pytest.mark.parametrize(
    "values, option",
    [
        ({"backup_every": 60.0}, "--backup-every"),
        ({"backup_dir": Path()}, "--backup-every"),
        ({"retention_every": 60.0}, "--retention-every"),
        ({"retention_every": 60.0, "retention": Path("none.toml")}, "retention"),
        ({"backup_every": 60.0, "backup_dir": Path(), "has_operations": False}, "--backup-dir"),
        ({"retention_every": 60.0, "retention": Path(), "has_operations": False}, "--retention"),
        ({"compress_every": 60.0, "has_operations": False}, "--compress-every"),
        ({"archive_dir": Path(), "has_operations": False}, "--archive-dir"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(values: dict[str, Any], option: str) -> None:
    options: dict[str, Any] = {**NO_OPTIONS, **values}
    with pytest.raises(Invalid) as refused:
        schedule_of(**options)
    assert refused.value.field == option


def test_the_options_are_a_schedule() -> None:
    assert schedule_of(**NO_OPTIONS).operations == []
    values: dict[str, Any] = {**NO_OPTIONS, "verify_sample_every": 3600.0, "verify_at": time(3)}
    assert schedule_of(**values) == Schedule()
    more: dict[str, Any] = {**values, "backup_every": 60.0, "backup_dir": Path("backups"), "compress_every": 60.0}
    schedule = schedule_of(**more)
    assert schedule.operations == ["verify", "verify_sample", "backup", "compress"]
    # The working directory of the process of a backup is not part of its contract.
    assert schedule.backup == BackupPlan(Path("backups").absolute(), 7)
    more["archive_dir"] = Path("old")
    assert schedule_of(**more).archive_directory == Path("old").absolute()
