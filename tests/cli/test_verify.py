"""`rollbook verify`, `rebuild` and `seal`: findings, output and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import ON_BOTH, Filled, Rollbook, execute, runner


def test_a_sound_store_is_intact(rollbook: Rollbook) -> None:
    printed = rollbook("verify")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.startswith("intact: ")
    report = rollbook("verify", "--json").json
    assert report["ok"] is True
    assert f"{report['events']:,} events" in printed.out
    assert report["chain_head"] in printed.out
    assert report["state_hash"] in printed.out


@ON_BOTH
def test_an_edited_row_is_named_and_the_code_is_three(rollbook: Rollbook, filled: Filled) -> None:
    execute(filled.url, f"UPDATE rollouts SET status = 'failed' WHERE rollout_id = '{filled.retried}'")
    printed = rollbook("verify")
    assert printed.code == 3
    for part in ("rollouts", filled.retried, "status", "succeeded", "failed", "NOT INTACT"):
        assert part in printed.out
    assert "rollbook rebuild" in printed.err
    as_json = rollbook("verify", "--json")
    assert as_json.code == 3
    assert as_json.json["difference_count"] == 1
    assert as_json.json["differences"][0]["found"] == "failed"
    assert filled.retried in rollbook("verify", terminal=True).out


@ON_BOTH
def test_the_result_is_stored_for_metrics(rollbook: Rollbook, filled: Filled) -> None:
    commits = rollbook("verify", "--json").json["commits"]
    stored = "SELECT operation || ' ' || commit_id || ' ' || differences || ' ' || runs FROM operation_runs"
    (last,) = execute(filled.url, "SELECT max(commit_id) FROM commits")
    assert int(last) >= commits
    assert execute(filled.url, stored) == [f"verify {last} 0 1"]
    execute(filled.url, f"UPDATE rollouts SET status = 'failed' WHERE rollout_id = '{filled.retried}'")
    assert rollbook("verify").code == 3
    assert execute(filled.url, stored) == [f"verify {last} 1 2"]


def test_a_result_that_cannot_be_stored_is_printed_and_noted(
    filled_file: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = "CREATE TRIGGER refusing BEFORE INSERT ON operation_runs BEGIN SELECT RAISE(ABORT, 'no'); END"
    execute(filled_file.url, refusing)
    printed = runner(filled_file.url, monkeypatch)("verify")
    assert printed.code == 3
    assert "refusing" in printed.out
    assert "the result was not stored for metrics" in printed.err


def test_rebuild_mends_the_row_and_says_which(rollbook: Rollbook, filled: Filled) -> None:
    execute(filled.url, f"UPDATE rollouts SET status = 'failed' WHERE rollout_id = '{filled.retried}'")
    mended = rollbook("rebuild")
    assert mended.code == 0
    assert "1 of rollouts" in mended.out
    assert filled.retried in mended.out
    assert rollbook("verify").code == 0
    again = rollbook("rebuild", "--json").json
    assert sum(again["written"].values()) == 0
    assert "every row was correct" in rollbook("rebuild").out


@pytest.mark.new_partition
@ON_BOTH
def test_damage_to_the_log_is_reported_as_irreparable(rollbook: Rollbook, filled: Filled) -> None:
    if filled.url.startswith("sqlite"):
        for name in execute(
            filled.url, "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'events'"
        ):
            execute(filled.url, f"DROP TRIGGER {name}")
    else:
        execute(filled.url, "ALTER TABLE events DISABLE TRIGGER USER")
    execute(filled.url, "UPDATE events SET actor = 'nobody' WHERE position = 2")
    printed = rollbook("verify")
    assert printed.code == 3
    assert "chain" in printed.out
    assert "restore a backup" in printed.err


def test_a_seal_is_proved_later(rollbook: Rollbook, filled: Filled, tmp_path: Path) -> None:
    file = tmp_path / "night.seal"
    sealed = rollbook("seal", str(file))
    assert (sealed.code, file.exists()) == (0, True)
    assert f"rollbook verify --seal {file}" in sealed.err
    report = rollbook("verify", "--seal", str(file), "--json").json
    assert (report["ok"], report["seal_checked"]) == (True, True)
    assert report["chain_head"] in sealed.out
    assert "and the seal" in rollbook("verify", "--seal", str(file)).out


def test_a_seal_is_never_overwritten(rollbook: Rollbook, tmp_path: Path) -> None:
    file = tmp_path / "night.seal"
    assert rollbook("seal", str(file), "--json").json["form"] == 1
    before = file.read_bytes()
    again = rollbook("seal", str(file))
    assert (again.code, again.out, file.read_bytes()) == (1, "", before)
    assert "exists" in again.err


def test_a_seal_that_cannot_be_written_or_is_missing_says_so(rollbook: Rollbook, tmp_path: Path) -> None:
    nowhere = rollbook("seal", str(tmp_path / "none" / "night.seal"))
    assert (nowhere.code, nowhere.out) == (1, "")
    assert "Traceback" not in nowhere.err
    assert rollbook("verify", "--seal", str(tmp_path / "none.seal")).code == 2


def test_a_file_that_is_no_seal_is_refused(rollbook: Rollbook, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a seal")
    printed = rollbook("verify", "--seal", str(file))
    assert printed.code in {1, 2}
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("command", [("verify",), ("rebuild",)])
def test_progress_is_not_mixed_into_the_data(rollbook: Rollbook, command: tuple[str, ...]) -> None:
    assert "…" not in rollbook(*command).out


def test_many_differences_are_printed_in_part_and_all_of_them_as_json(rollbook: Rollbook, filled: Filled) -> None:
    columns = ("name", "status_code", "trace_id", "parent_id")
    changes = ", ".join(f"{column} = 'edited'" for column in columns)
    execute(filled.url, f"UPDATE spans SET {changes}")
    execute(filled.url, f"UPDATE rollouts SET status = 'failed' WHERE rollout_id = '{filled.retried}'")
    differences = rollbook("verify", "--json").json["differences"]
    of_spans = [difference for difference in differences if difference["check"] == "spans"]
    printed = rollbook("verify")
    assert len(of_spans) > 10
    assert f"… and {len(of_spans) - 10} more of spans; --json shows them" in printed.out
    assert sum(line.startswith("spans\t") for line in printed.out.splitlines()) == 10
    assert sum(line.startswith("rollouts\t") for line in printed.out.splitlines()) == 1


def test_a_value_of_another_type_is_named_and_repaired(rollbook: Rollbook, filled: Filled) -> None:
    execute(filled.url, f"UPDATE rollouts SET status = X'FF' WHERE rollout_id = '{filled.retried}'")
    printed = rollbook("verify")
    assert printed.code == 3
    for part in ("rollouts", filled.retried, "status", "UTF-8 text", "blob X'ff'"):
        assert part in printed.out
    assert "rollbook rebuild" in printed.err
    assert filled.retried in rollbook("rebuild").out
    assert rollbook("verify").code == 0


def test_missing_index_is_not_reported_as_damage_to_the_log(rollbook: Rollbook, filled: Filled) -> None:
    execute(filled.url, "DROP INDEX ix_rollouts_first_position")
    printed = rollbook("verify")
    assert printed.code == 3
    assert "the index on (first_position) is missing" in printed.out
    assert "create or drop them" in printed.err
