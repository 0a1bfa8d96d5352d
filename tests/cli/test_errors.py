"""Every failure is one message on standard error and an exit code; every command in the help works."""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer import Context
from typer.main import get_command

from store import errors
from store.cli.app import app
from store.cli.errors import exit_code
from tests.cli.conftest import COMMAND, Filled, Rollbook, copied, environment, fill

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
    "metrics": ("metrics",),
    "search": ("search", "input:"),
    "seal": ("seal", "{file}"),
    "copy": ("copy", "--help"),
    "backup": ("backup", "{file}.{terminal}.backup"),
    "restore": ("restore", "--help"),
    "retention": ("retention", "--older-than", "1s", "--yes"),
    "archive": ("archive", "{file}.{terminal}.archive", "--older-than", "1s", "--yes"),
    "redact": ("redact", "{id}", "--input", "--reason", "requested", "--yes"),
    "forget": ("forget", "--match", "a text"),
    "compact": ("compact",),
    "history": ("history", "{id}"),
    "annotate": ("annotate", "{id}", "--label", "seen"),
    "show": ("show", "{id}"),
    "effect": ("effect",),
    "sample": ("sample",),
    "scatter": ("scatter",),
    "curves": ("curves",),
    "compare-selections": ("compare-selections", "id={id}", "status=failed"),
    "rescore": ("rescore", "--reward", "tests.rescoring.rewards:later@v1", "--dry-run"),
    "scan": ("scan", "errors@v1", "--search", "error:", "--dry-run"),
    **{
        f"export {name}": ("export", name, f"{{file}}.{{terminal}}.{name}", "--id", "{id}")
        for name in ("parquet", "jsonl", "hf", "sft", "otlp", "atif")
    },
    "export bundle": ("export", "bundle", "{file}.{terminal}.bundle", "--id", "{id}"),
    "export sqlite": ("export", "sqlite", "{file}.{terminal}.tables.db", "--id", "{id}"),
    "export postgres": ("export", "postgres", "--help"),
    "webhooks add": ("webhooks", "add", "https://93.184.216.34/"),
    "webhooks ls": ("webhooks", "ls"),
    "webhooks rm": ("webhooks", "rm", "--help"),
    "webhooks test": ("webhooks", "test", "--help"),
    "webhooks deliveries": ("webhooks", "deliveries"),
    "sql": ("sql", "select count(*) from rollouts"),
    "replay": ("replay", "--as-queue", "--name", "again", "--dry-run"),
    "export log": ("export", "log", "{file}.{terminal}.log"),
    "import log": ("import", "log", "--help"),
    "import agentlightning": ("import", "agentlightning", "--help"),
    "tail": ("tail",),
    "stats": ("stats",),
    "cost": ("cost",),
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
    "import atif": ("import", "atif", "--help"),
    "import traces": ("import", "traces", str(Path(__file__).parents[1] / "imports" / "data")),
    "import otlp": ("import", "otlp", "--help"),
    "follow": ("follow", "--help"),
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
        yield from (f"{name} {command}" for command in below) if below else [name]


def _below(command: object) -> dict[str, object]:
    return getattr(command, "commands", {})


def test_every_command_in_the_help_is_tried_here() -> None:
    assert set(paths()) == set(WORKING)


# These end or remove something that others read.
LAST = ("undo", "redact", "retention", "archive", "cancel", "retry")


def failures(
    rollbook: Rollbook, filled: Filled, directory: Path, path: str, *, terminals: tuple[bool, ...] = (False, True)
) -> list[str]:
    """Run a command for a program and for a terminal, and return what is wrong."""
    wrong: list[str] = []
    for terminal in terminals:
        seal = directory / f"{path}.{terminal}.seal"
        values = {"id": filled.retried, "waiting": filled.waiting[0], "file": seal, "terminal": terminal}
        printed = rollbook(*(word.format(**values) for word in WORKING[path]), db=filled.url, terminal=terminal)
        if printed.code or not printed.out:
            wrong.append(f"{path}, terminal={terminal}: exit code {printed.code}: {printed.err}")
    return wrong


def test_every_command_works_on_a_filled_store(bare: Rollbook, original: Filled, tmp_path: Path) -> None:
    wrong: list[str] = []
    for path, arguments in WORKING.items():
        store = copied(original, f"sqlite:///{tmp_path / path}.db")
        # The next test but one prints the help without a terminal.
        terminals = (True,) if "--help" in arguments else (False, True)
        wrong += failures(bare, store, tmp_path, path, terminals=terminals)
    assert wrong == []


@pytest.mark.new_partition
@pytest.mark.postgres
def test_every_command_works_on_a_filled_store_on_postgres(bare: Rollbook, postgres_url: str, tmp_path: Path) -> None:
    store = asyncio.run(fill(postgres_url))
    paths_in_use = [path for path, arguments in WORKING.items() if "--help" not in arguments]
    paths_in_use.sort(key=lambda path: LAST.index(path) if path in LAST else -1)
    wrong: list[str] = []
    for path in paths_in_use:
        # A terminal shows the same, whatever the database.
        wrong += failures(bare, store, tmp_path, path, terminals=(False,))
    assert wrong == []


def test_every_command_explains_itself(bare: Rollbook) -> None:
    wrong: list[str] = []
    for path in [*WORKING, "ls"]:
        printed = bare(*path.split(), "--help")
        if printed.code or f"Usage: rollbook {path} " not in printed.out:
            wrong.append(f"{path} --help: exit code {printed.code}: {printed.out}{printed.err}")
        if bare(*path.split(), "-h").out != printed.out:
            wrong.append(f"{path} -h")
    assert wrong == []


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
def test_mistyped_command_is_a_usage_error(bare: Rollbook, arguments: tuple[str, ...]) -> None:
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
    (errors.SpanConflict([["ro-1", "at-1", "s1"]], [0]), 1),
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


def test_every_error_of_the_store_has_an_exit_code() -> None:
    assert [(type(error).__name__, exit_code(error)) for error, _ in CODES] == [
        (type(error).__name__, code) for error, code in CODES
    ]


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
@pytest.mark.parametrize(
    "arguments",
    [pytest.param(["tail"], marks=pytest.mark.torture_only), ["ls", "rollouts"], ["tail", "--json"]],
    ids=" ".join,
)
def test_a_reader_that_leaves_is_no_error_message(filled_file: Filled, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    env = environment(filled_file.url)
    process = subprocess.Popen([*COMMAND, *arguments], env=env, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    _, said = process.communicate(timeout=250)
    assert said == b""
    assert process.returncode == 141


@pytest.mark.slow
def test_a_real_terminal_gets_colours_and_a_pipe_does_not(filled_file: Filled) -> None:
    command = [*COMMAND, "ls", "rollouts"]
    env = environment(filled_file.url)
    piped = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stdout
    calls = (["ls", "rollouts"], ["history", filled_file.retried], ["tail"])
    current, *past = _on_a_terminal([(call, {}) for call in calls], env)
    assert "\x1b[32msucceeded" in current
    assert filled_file.retried in current
    assert all("\x1b[2m" in text for text in past)
    plain = _on_a_terminal([(call, {"NO_COLOR": "1"}) for call in calls], env)
    assert "\x1b" not in "".join(plain)
    assert filled_file.retried in plain[0]


def test_the_servers_of_one_machine_have_different_default_ports(bare: Rollbook) -> None:
    ports = {
        command: re.findall(r"default: (47\d\d)\]", bare(command, "--help").out) for command in ("serve", "proxy", "ui")
    }
    assert ports == {"serve": ["4747"], "proxy": ["4748"], "ui": ["4749"]}


_RUN_COMMANDS = """
import json, os, sys
from store.cli import main
import aiosqlite, pydantic, rich.console, rich.table, sqlalchemy.dialects.sqlite
import store.cli.commands.history, store.cli.commands.ls, store.sql.log, store.sql.store

for arguments, variables in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        os.environ.update(variables)
        sys.argv = ["rollbook", *arguments]
        main()
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("exit code", code, flush=True)
"""


def _on_a_terminal(calls: list[tuple[list[str], dict[str, str]]], environment: dict[str, str]) -> list[str]:
    """Run commands, each in a process of its own, on one pseudo-terminal, and return their outputs.

    Args:
        calls: the arguments and variables of each command.
        environment: the variables of all commands.
    """
    import pty

    parent, child = pty.openpty()
    command = [sys.executable, "-c", _RUN_COMMANDS, orjson.dumps(calls).decode()]
    process = subprocess.Popen(command, env=environment, stdin=child, stdout=child, stderr=child)
    os.close(child)
    screen = io.BytesIO()
    try:
        while chunk := os.read(parent, 4096):
            screen.write(chunk)
    except OSError:
        # Linux reports the end of a pseudo-terminal as an error.
        pass
    os.close(parent)
    assert process.wait(250) == 0
    *outputs, rest = re.split(r"exit code 0\r\n", screen.getvalue().decode())
    assert (len(outputs), rest) == (len(calls), "")
    return outputs
