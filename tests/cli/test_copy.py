"""`rollbook copy`, `backup` and `restore`: their output and exit codes."""

from __future__ import annotations

import io
import re
import shlex
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from store.cli.output import progress
from store.runtime.progress import OperationProgress
from tests.cli.conftest import ON_BOTH, Filled, Rollbook
from tests.postgres import with_partition

ROOT = Path(__file__).parents[2]


@ON_BOTH
def test_a_copy_is_described(
    rollbook: Rollbook, filled: Filled, make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_url("copy.db")
    monkeypatch.setattr(progress, "SECONDS", 600.0)
    printed = rollbook("copy", filled.url, target)
    assert printed.code == 0, printed.err
    proof = rollbook("verify", "--json", db=target).json
    first, *lines = printed.out.splitlines()
    assert re.fullmatch(
        rf"copied to {re.escape(target)}: {proof['events']} events up to position {proof['last_position']},"
        rf" commit {proof['commits']}; \d+\.\d kB in [\d.]+ m?s",
        first,
    )
    assert lines == [
        f"store id    {proof['store_id']}",
        f"chain head  {proof['chain_head']}",
        f"state hash  {proof['state_hash']}",
        "verified: the log is intact, and every table matches it",
    ]
    # Progress is printed only after the time that is set above.
    assert printed.err == ""
    assert rollbook("ls", "rollouts", "--json").json_lines == rollbook("ls", "rollouts", "--json", db=target).json_lines


@ON_BOTH
def test_copy_of_some_rollouts_is_counted_and_described(
    rollbook: Rollbook, filled: Filled, make_url: Callable[[str], str]
) -> None:
    target = make_url("part.db")
    counted = rollbook("copy", filled.url, target, "--id", filled.retried, "--dry-run").out.splitlines()
    origin = rollbook("verify", "--json").json
    printed = rollbook("copy", filled.url, target, "--id", filled.retried)
    assert (printed.code, printed.out.splitlines()[:3]) == (0, counted)
    first, *lines = counted
    assert re.fullmatch(
        rf"1 rollouts \(0 not finished\), 1 resources, \d+ events: rollout_id_in={filled.retried}", first
    )
    assert lines == [
        f"of          store {origin['store_id']} at position {origin['last_position']}, commit {origin['commits']}",
        f"its head    {origin['chain_head']}",
    ]
    (rollout,) = rollbook("ls", "rollouts", "--json", db=target).json["items"]
    assert rollout["rollout_id"] == filled.retried
    reference = rollbook("tail", "--all", "--type", "store.copied_from", db=target).out
    assert f"1 rollout copied from store {origin['store_id']} at position {origin['last_position']}" in reference
    again = rollbook("copy", filled.url, make_url("other.db"), "--id", filled.retried, "--json").json
    assert (again["part"]["rollouts"], again["part"]["origin"]["chain_head"]) == (1, origin["chain_head"])


def test_selection_of_a_copy_is_checked(bare: Rollbook, filled_file: Filled, make_url: Callable[[str], str]) -> None:
    target = make_url("part.db")
    nothing = bare("copy", filled_file.url, target, "--group", "nothing")
    assert (nothing.code, nothing.err) == (
        5,
        "rollbook: no rollout matches the conditions: group_in=nothing\n",
    )
    whole = bare("copy", filled_file.url, target, "--dry-run")
    assert (whole.code, "needs a condition on rollouts" in whole.err) == (2, True)
    assert bare("copy", filled_file.url, target, "--colour", "red").code == 2
    assert bare("verify", db=target).code == 5


@ON_BOTH
def test_a_backup_and_its_restoration_as_json(
    rollbook: Rollbook, filled: Filled, make_url: Callable[[str], str], tmp_path: Path
) -> None:
    file, target = str(tmp_path / "store.backup"), make_url("restored.db")
    saved = rollbook("backup", file, "--json")
    assert (saved.code, saved.err) == (0, "")
    restored = rollbook("restore", file, "--db", target, "--json")
    assert restored.json["seal"] == saved.json["seal"]
    assert restored.json["chain_head"] == saved.json["chain_head"] == saved.json["seal"]["chain_head"]
    assert rollbook("show", filled.retried, db=f"sqlite:///{file}").code == 0


def test_a_backup_prints_its_seal(rollbook: Rollbook, filled_file: Filled, tmp_path: Path) -> None:
    file = tmp_path / "store.backup"
    printed = rollbook("backup", str(file), "--no-verify", db=filled_file.url)
    assert "not verified" in printed.out
    with closing(sqlite3.connect(file)) as connection:
        ((seal,),) = connection.execute("SELECT seal FROM backup_seal")
    assert printed.out.splitlines()[-1] == f"seal        {seal}"
    assert printed.err.splitlines()[-1] == f"to restore it: rollbook restore {file} --db URL"


def test_target_with_the_name_of_a_partition_of_another_file_is_noted(
    bare: Rollbook, filled_file: Filled, make_url: Callable[[str], str], tmp_path: Path
) -> None:
    assert bare("backup", str(tmp_path / "store.backup"), "--no-verify", db=filled_file.url).code == 0
    for name, command in {
        "file.copy.db": ("copy", filled_file.url, make_url("file.copy.db")),
        "file.restored.db": ("restore", str(tmp_path / "store.backup"), "--db", make_url("file.restored.db")),
    }.items():
        printed = bare(*command)
        partition = name.split(".")[1]
        assert printed.code == 0
        assert f"{name} has the name of a partition {partition} of file.db, but is a store of its own" in printed.err
    assert "has the name" not in bare("copy", filled_file.url, make_url("other.db")).err


def test_the_exit_codes(bare: Rollbook, filled_file: Filled, make_url: Callable[[str], str], tmp_path: Path) -> None:
    file, target = str(tmp_path / "store.backup"), make_url("target.db")
    assert bare("backup", file).code == 5
    assert bare("restore", file, "--db", target).code == 5
    assert bare("copy", "http://localhost:1", target).code == 2
    assert bare("backup", file, "--db", filled_file.url).code == 0
    existing = bare("backup", file, "--db", filled_file.url)
    assert existing.code == 1
    assert existing.err == (
        f"rollbook: file '{file}' already exists; a copy never overwrites anything; choose another target, or remove"
        " this one\n"
    )
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM span_counters")
    damaged = bare("restore", file, "--db", target)
    assert damaged.code == 3
    assert damaged.err.startswith(f"rollbook: tables of the backup {file}: found ")


def test_progress_is_printed_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 4.5, 5.0, 6.0, 10.0, 10.5])
    # Only the name `time` in this module is replaced, because other threads also call `time.monotonic`.
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=times.__next__))
    with progress.progress_shown(is_quiet=False) as show:
        for done in (0, 1000, 2000, 2500):
            show(OperationProgress("copying the log", done, 3000))
        show(OperationProgress("checking the log"))
    assert capsys.readouterr().err.splitlines() == [
        "copying the log: 1,000 of 3,000 events",
        "copying the log: 2,500 of 3,000 events",
        "checking the log",
    ]


def test_a_copy_prints_its_steps(
    bare: Rollbook, filled_file: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    printed = bare("copy", filled_file.url, f"sqlite:///{tmp_path / 'copy.db'}")
    assert printed.code == 0
    steps = [line.partition(":")[0] for line in printed.err.splitlines()]
    assert list(dict.fromkeys(steps)) == [
        "copying the log",
        "computing the tables",
        "comparing the tables",
        "checking the log",
    ]


def test_the_current_step_is_printed_when_the_time_has_passed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.1)
    with progress.progress_shown(is_quiet=False) as show:
        show(OperationProgress("compressing", 0, 10))
        show(OperationProgress("freeing space"))
        printed, end = "", time.monotonic() + 60
        while "freeing space" not in printed and time.monotonic() < end:
            time.sleep(0.02)
            printed += capsys.readouterr().err
    # On a slow machine, the time may pass between the two steps.
    assert printed.removeprefix("compressing: 0 of 10 events\n") == "freeing space\n"


def test_a_terminal_shows_one_bar_for_the_current_step(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.progress_shown(is_quiet=False) as show:
        show(OperationProgress("comparing the tables", 1500, 3000))
        show(OperationProgress("checking the log"))
        # The steps of a verification are repeated after some errors.
        show(OperationProgress("comparing the tables", 2750, 3000))
    last = terminal.getvalue().rpartition("comparing the tables")[2]
    assert "2,750 of 3,000 events" in last


@pytest.mark.parametrize(
    "arguments, steps",
    [
        (["compact"], ["compressing: 0 of ", "freeing space"]),
        (["forget", "--match", "nowhere"], ["searching: 0 of "]),
        (["retention", "--status", "succeeded,failed"], ["counting payload: 0 of "]),
        (["retention", "--status", "succeeded,failed", "--yes", "--vacuum"], ["removing payload: 0 of ", "freeing"]),
        (["verify"], ["comparing the tables: 0 of ", "checking the log"]),
        (["rebuild"], ["comparing the tables: 0 of "]),
    ],
)
def test_operations_print_their_steps(
    bare: Rollbook,
    filled_file: Filled,
    arguments: list[str],
    steps: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    printed = bare(*arguments, "--db", filled_file.url)
    assert printed.code == 0
    lines = printed.err.splitlines()
    assert [any(line.startswith(step) for line in lines) for step in steps] == [True] * len(steps)
    assert bare(*arguments, "--db", filled_file.url, "--json").err == ""


def test_the_commands_of_the_page_work(
    bare: Rollbook, filled_file: Filled, postgres_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/backups.md").read_text()
    commands = re.findall(r"^\$ rollbook (.*)$", page, re.MULTILINE)
    assert len(commands) == 9
    Path(filled_file.url.removeprefix("sqlite:///")).rename(tmp_path / "run.db")
    monkeypatch.chdir(tmp_path)
    urls = defaultdict[str, str](lambda: with_partition(postgres_server))
    for line in commands:
        printed = bare(*(urls[word] if word.startswith("postgresql://") else word for word in shlex.split(line)))
        assert printed.code == 0, printed.err
    assert {path.name for path in tmp_path.glob("*.db")} >= {"run.db", "restored.db", "run_7.db"}
