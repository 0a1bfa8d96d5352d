"""`rollbook partitions drop`: the required repetition of the name, and exit codes."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable

import pytest

from tests.cli.conftest import COMMAND, Rollbook, environment


@pytest.fixture
def database(bare: Rollbook, make_url: Callable[[str], str]) -> str:
    """The URL of a file with a second partition."""
    url = make_url("run.db")
    assert bare("migrate", "--db", url).code == 0
    assert bare("partitions", "create", "second", "--db", url).code == 0
    return url


def test_the_name_must_be_given_twice(bare: Rollbook, database: str) -> None:
    without = bare("partitions", "drop", "second", "--db", database)
    assert without.code == 2
    assert "--yes" in without.err
    # `--confirm NAME` is the older form of `--yes`.
    assert bare("partitions", "drop", "second", "--confirm", "first", "--db", database).code == 2
    assert bare("partitions", "drop", "default", "--confirm", "default", "--db", database).code == 2
    assert bare("partitions", "ls", "--json", "--db", database).json == ["default", "second"]
    dropped = bare("partitions", "drop", "second", "--yes", "--db", database)
    assert dropped.code == 0
    assert dropped.out.startswith(f"dropped {database}?partition=second, ")
    assert bare("partitions", "drop", "second", "--confirm", "second", "--db", database).code == 5


def test_the_revoked_keys_are_shown(bare: Rollbook, database: str) -> None:
    created = bare("keys", "create", "--role", "runner", "--partition", "second", "--db", database)
    assert created.code == 0
    (key,) = bare("keys", "ls", "--json", "--db", database).json
    report = bare("partitions", "drop", "second", "--confirm", "second", "--json", "--db", database).json
    assert report["revoked_keys"] == [key["id"]]
    assert report["size_bytes"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("typed,code", [("second", 0), ("secnod", 2)])
def test_a_terminal_is_asked_for_the_name(database: str, typed: str, code: int) -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "partitions", "drop", "second"],
        env=environment(database),
        stdin=child,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(child)
    os.write(parent, f"{typed}\n".encode())
    out, err = process.communicate(timeout=250)
    os.close(parent)
    assert process.returncode == code
    assert b"Type the name of the partition again" in err
    assert (b"dropped " in out) == (code == 0)
