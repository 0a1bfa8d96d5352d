"""Every failure is one message on standard error and an exit code; every command in the help works."""

from __future__ import annotations

import io
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_command

from store import errors
from store.cli.app import app
from store.cli.errors import exit_code
from tests.cli.conftest import COMMAND, Filled, Rollbook, environment

pytestmark = pytest.mark.slow

WORKING = {
    "demo": ("demo", "--help"),
    "migrate": ("migrate",),
    "enqueue": ("enqueue", "1"),
    "cancel": ("cancel", "{waiting}"),
    "retry": ("retry", "{id}"),
    "verify": ("verify",),
    "doctor": ("doctor",),
    "rebuild": ("rebuild",),
    "seal": ("seal", "{file}"),
    "copy": ("copy", "--help"),
    "backup": ("backup", "{file}.{terminal}.backup"),
    "restore": ("restore", "--help"),
    "retention": ("retention", "--older-than", "1s", "--apply"),
    "archive": ("archive", "{file}.{terminal}.archive", "--older-than", "1s", "--apply"),
    "redact": ("redact", "{id}", "--input", "--reason", "requested", "--yes"),
    "forget": ("forget", "--match", "a text"),
    "compact": ("compact",),
    "history": ("history", "{id}"),
    "annotate": ("annotate", "{id}", "--label", "seen"),
    "show": ("show", "{id}"),
    "tail": ("tail",),
    "stats": ("stats",),
    "ls rollouts": ("ls", "rollouts"),
    "ls attempts": ("ls", "attempts", "{id}"),
    "ls spans": ("ls", "spans", "{id}"),
    "ls resources": ("ls", "resources"),
    "ls workers": ("ls", "workers"),
    "serve": ("serve", "--help"),
    "ui": ("ui", "--help"),
    "store": ("store", "--help"),
    "keys create": ("keys", "create", "--help"),
    "keys rotate": ("keys", "rotate", "--help"),
    "keys enforce": ("keys", "enforce", "--help"),
    "keys ls": ("keys", "ls"),
    "keys list": ("keys", "list"),
    "keys revoke": ("keys", "revoke", "--help"),
    "train": ("train", "--help"),
    "runner": ("runner", "--help"),
    "guess-number": ("guess-number", "--help"),
    "trading": ("trading", "--help"),
    "runs": ("runs", "--help"),
    "rerun": ("rerun", "--help"),
    "lineage": ("lineage", "{id}"),
    "compare": ("compare", "--help"),
    "undo": ("undo", "{id}", "--to", "1"),
    "proxy": ("proxy", "--help"),
    "partitions create": ("partitions", "create", "--help"),
    "partitions ls": ("partitions", "ls"),
    "partitions drop": ("partitions", "drop", "--help"),
    "import-runs": ("import-runs", str(Path(__file__).parents[1] / "run_folders" / "golden")),
    "export-run": ("export-run", "{id}", "{file}.reports"),
    "mirror": ("mirror", "--help"),
}


def paths() -> Iterator[str]:
    """Yield every command as it is typed."""
    top: Any = get_command(app)
    context = Context(top)
    for name in _below(top):
        below = _below(top.resolve_command(context, [name])[1])
        yield from (f"{name} {each}" for each in below) if below else [name]


def _below(command: object) -> dict[str, object]:
    return getattr(command, "commands", {})


def test_every_command_in_the_help_is_tried_here() -> None:
    assert set(paths()) == set(WORKING)


@pytest.mark.parametrize("path", WORKING)
def test_a_command_works_on_a_filled_store(rollbook: Rollbook, filled: Filled, tmp_path: Path, path: str) -> None:
    for terminal in (False, True):
        given = {"id": filled.retried, "waiting": filled.waiting[0], "file": tmp_path / "a.seal", "terminal": terminal}
        arguments = [each.format(**given) for each in WORKING[path]]
        printed = rollbook(*arguments, terminal=terminal)
        assert printed.code == 0
        assert printed.out
        if path == "seal":
            (tmp_path / "a.seal").unlink()


@pytest.mark.parametrize("path", [*WORKING, "ls"])
def test_a_command_explains_itself(bare: Rollbook, path: str) -> None:
    printed = bare(*path.split(), "--help")
    assert printed.code == 0
    assert f"Usage: rollbook {path} " in printed.out
    assert bare(*path.split(), "-h").out == printed.out


def test_the_version_is_that_of_the_distribution(bare: Rollbook) -> None:
    assert bare("--version").out == f"rollbook {version('rollbook')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("sho",),
        ("show",),
        ("ls", "attempts"),
        ("ls", "rollouts", "--limit", "many"),
        ("ls", "rollouts", "--limit", "-2"),
        ("ls", "rollouts", "--offset", "-1"),
        ("ls", "rollouts", "--as-at", "yesterday"),
        ("stats", "--db", "mysql://x"),
        ("stats", "--db", "rollbook.db"),
        ("stats", "--db", "sqlite:///a.db?durable=yes"),
        ("stats", "--db", "memory://"),
        ("ls", "rollouts", "--db", "memory://"),
    ],
    ids=" ".join,
)
def test_what_is_mistyped_is_usage(bare: Rollbook, arguments: tuple[str, ...]) -> None:
    printed = bare(*arguments)
    assert (printed.code, printed.out) == (2, "")
    assert printed.err
    assert "Traceback" not in printed.err


CODES = [
    (errors.NotFound.rollout("ro-1"), 5),
    (errors.Conflict("no"), 1),
    (errors.AlreadyExists("rollout", "ro-1"), 1),
    (errors.AttemptActive("ro-1", 2), 1),
    (errors.HeadMoved("ro-1", 1, 2), 1),
    (errors.GraphChanged(["cp-1"]), 1),
    (errors.CheckpointMissing("trader_checkpoint", ["RIG"], "risk"), 1),
    (errors.SideEffectsUnconfirmed(["portfolio"]), 1),
    (errors.Invalid("limit", "no"), 2),
    (errors.TooLarge("input", 2, 1), 2),
    (errors.PastUnavailable(2, 1), 1),
    (errors.Unavailable("gone"), 4),
    (errors.Busy(2, 1), 4),
    (errors.RateLimited("run_7", 500), 4),
    (errors.TimedOut("a call", 1), 4),
    (errors.QuotaExceeded("run_7", "events", 5, 1, 5), 1),
    (errors.Incompatible("old", "upgrade"), 1),
    (errors.Corrupt("events", 1, 2), 3),
    (errors.Unauthorized("no key"), 1),
    (errors.Forbidden("another partition"), 1),
    (errors.ReadOnly("a call"), 1),
    (errors.Unsupported("tail", "Store"), 1),
    (errors.WrongProcess(1, 2), 1),
    (errors.Closed("a call"), 4),
]


@pytest.mark.parametrize("error, code", CODES, ids=lambda given: type(given).__name__)
def test_every_error_of_the_store_has_a_code(error: errors.StoreError, code: int) -> None:
    assert exit_code(error) == code


def test_no_error_of_the_store_was_forgotten_above() -> None:
    assert {type(error).__name__ for error, _ in CODES} == set(errors.__all__) - {"StoreError"}


def test_a_server_that_is_not_there_is_unavailable(bare: Rollbook) -> None:
    printed = bare("stats", "--db", "postgresql://rollbook:secret@127.0.0.1:1/none")
    assert (printed.code, printed.out) == (4, "")
    assert "secret" not in printed.err


def test_a_file_that_is_no_store_is_refused(bare: Rollbook, tmp_path: Path, make_url: Callable[[str], str]) -> None:
    (tmp_path / "notes.db").write_text("these are my notes, and they are long enough to be a page" * 100)
    printed = bare("stats", "--db", make_url("notes.db"))
    assert (printed.code, printed.out) == (1, "")
    assert "not a SQLite database" in printed.err


@pytest.mark.slow
def test_a_traceback_is_shown_only_when_asked_for(filled_file: Filled) -> None:
    arguments = [*COMMAND, "show", "none"]
    plain = subprocess.run(arguments, check=False, env=environment(filled_file.url), capture_output=True, text=True)
    assert (plain.returncode, plain.stdout) == (5, "")
    assert plain.stderr.count("\n") == 1
    asked = environment(filled_file.url, ROLLBOOK_DEBUG="1")
    debug = subprocess.run(arguments, check=False, env=asked, capture_output=True, text=True)
    assert debug.returncode == 5
    assert "Traceback" in debug.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["tail"], ["ls", "rollouts"], ["tail", "--json"]], ids=" ".join)
def test_a_reader_that_leaves_is_no_error_message(filled_file: Filled, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    env = environment(filled_file.url)
    process = subprocess.Popen([*COMMAND, *arguments], env=env, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    _, said = process.communicate(timeout=90)
    assert said == b""
    assert process.returncode == 141


@pytest.mark.slow
def test_a_real_terminal_gets_colours_and_a_pipe_does_not(filled_file: Filled) -> None:
    command = [*COMMAND, "ls", "rollouts"]
    env = environment(filled_file.url)
    piped = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stdout
    shown = _on_a_terminal(command, env)
    assert "\x1b[32msucceeded" in shown
    assert filled_file.retried in shown
    bleak = _on_a_terminal(command, env | {"NO_COLOR": "1"})
    assert "\x1b" not in bleak
    assert filled_file.retried in bleak
    for seen in (["history", filled_file.retried], ["tail"]):
        assert "\x1b[2m" in _on_a_terminal([*COMMAND, *seen], env)
        assert "\x1b" not in _on_a_terminal([*COMMAND, *seen], env | {"NO_COLOR": "1"})


def test_the_servers_of_one_machine_have_different_default_ports(bare: Rollbook) -> None:
    ports = {
        command: re.findall(r"default: (47\d\d)\]", bare(command, "--help").out) for command in ("serve", "proxy", "ui")
    }
    assert ports == {"serve": ["4747"], "proxy": ["4748"], "ui": ["4749"]}


def _on_a_terminal(command: list[str], environment: dict[str, str]) -> str:
    """Run a command with its output on a pseudo-terminal and return what appeared there."""
    import pty

    parent, child = pty.openpty()
    process = subprocess.Popen(command, env=environment, stdin=child, stdout=child, stderr=child)
    os.close(child)
    shown = io.BytesIO()
    try:
        while chunk := os.read(parent, 4096):
            shown.write(chunk)
    except OSError:
        # Linux reports the end of a pseudo-terminal as an error.
        pass
    os.close(parent)
    assert process.wait(90) == 0
    return shown.getvalue().decode()
