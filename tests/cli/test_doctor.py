"""`rollbook doctor`: its output and exit codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.db.schema import HEAD
from tests.cli.conftest import ON_BOTH, Filled, Rollbook, execute


@ON_BOTH
def test_the_results_are_printed_for_people_and_programs(rollbook: Rollbook, filled: Filled) -> None:
    rows = rollbook("doctor").table
    checks = rollbook("doctor", "--json").json
    assert list(checks) == ["db", "checks", "seconds"]
    assert [(row["outcome"], row["check"]) for row in rows] == [
        (check["outcome"], check["name"]) for check in checks["checks"]
    ]
    assert all(check["problem"] is None for check in checks["checks"])
    printed = rollbook("doctor", terminal=True)
    # The rollouts of the filled store have been waiting since last year.
    assert "warning  queue" in printed.out.replace("\x1b[33m", "")
    assert "remedy: rollbook runner AGENT --db" in printed.out
    assert printed.err.startswith("0 problems, ")
    assert filled.url in printed.err


def test_the_exit_codes(bare: Rollbook, filled_file: Filled, make_url: Callable[[str], str]) -> None:
    assert bare("doctor").code == 5
    assert bare("doctor", "--db", "postgresql://rollbook:secret@127.0.0.1:1/none").code == 4
    assert bare("doctor", "--db", "http://127.0.0.1:1").code == 4
    assert bare("doctor", "--db", "memory://").code == 2
    assert bare("doctor", "--db", filled_file.url).code == 0
    execute(filled_file.url, "UPDATE alembic_version SET version_num = '0001'")
    behind = bare("doctor", "--db", filled_file.url)
    assert behind.code == 1
    assert f"run: rollbook migrate --db '{filled_file.url}'" in behind.out
    execute(filled_file.url, f"UPDATE alembic_version SET version_num = '{HEAD}'")
    execute(filled_file.url, "DROP TRIGGER events_refuse_delete")
    damaged = bare("doctor", "--db", filled_file.url, "--json")
    assert damaged.code == 3
    assert [check["name"] for check in damaged.json["checks"] if check["problem"] == "damage"] == ["guards"]
    assert bare("doctor", "--db", make_url("none/run.db")).code == 5


def test_the_key_comes_from_the_environment(bare: Rollbook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_API_KEY", "rbk_0123456789_secret")
    printed = bare("doctor", "--db", "http://127.0.0.1:1")
    assert "secret" not in printed.out + printed.err
    monkeypatch.setenv("ROLLBOOK_API_KEY", "rbk_0123456789_secret\n")
    refused = bare("doctor", "--db", "http://127.0.0.1:1")
    assert refused.code == 2
    assert "secret" not in refused.out + refused.err
