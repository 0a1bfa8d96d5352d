"""Imports of commands: modules that take long to import stay out of a process without need. Decision 9."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.main import get_group

from store.cli.app import app
from tests.cli.conftest import Filled, environment

pytestmark = pytest.mark.slow

PROGRAM = """
import contextlib, io, json, sys
from store.cli.app import app
with contextlib.redirect_stdout(io.StringIO()):
    for command in json.loads(sys.argv[1]):
        try:
            app(command, standalone_mode=False)
        except SystemExit as ended:
            assert not ended.code, (command, ended.code)
print(*sys.modules)
"""
IN_CHILDREN = """
import contextlib, io, json, os, sys
import aiosqlite, orjson, pydantic, sqlalchemy.dialects.sqlite
from store.cli.app import app
for command in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                app(command, standalone_mode=False)
            except SystemExit as ended:
                assert not ended.code, (command, ended.code)
        print(*sys.modules)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0, command
"""
# The server, the client, the migrations, the other database, and what only agents or their training use.
ELSEWHERE = {
    *("fastapi", "starlette", "uvicorn", "jinja2", "store.server.app", "store.dashboard", "aiohttp", "store.client"),
    *("alembic", "asyncpg", "store.db.drivers.postgres", "sqlalchemy.dialects.postgresql", "sqlalchemy.ext.asyncio"),
    *("store.training", "store.llm_proxy", "store.examples", "store.testing", "opentelemetry", "google.protobuf"),
    *("anthropic", "langchain_core", "langgraph", "litellm", "numpy", "openai", "torch", "transformers"),
}
# The tables of a terminal, configuration files, and parts of a store that most commands leave alone.
UNUSED = {"rich", "tomllib", "store.sql.runs", "store.sql.json_pages", "store.planning", "store.run_folders"}
STORE = {"sqlalchemy", "aiosqlite", "store.db.dialect", "store.sql", "store.journal", "store.interface.store"}


def run(program: str, *arguments: str, url: str = "sqlite:///none.db") -> subprocess.CompletedProcess[str]:
    """Run a program in a new process, which must succeed."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment(url))
    assert done.returncode == 0, done.stderr
    return done


def imported(*commands: list[str], url: str = "sqlite:///none.db") -> set[str]:
    """Return the modules in a new process after it ran the commands."""
    return set(run(PROGRAM, json.dumps(commands), url=url).stdout.split())


FILTERING = ("compare-selections", "copy", "cost", "effect", "replay", "rescore", "scan", "search", "sql")
"""Commands whose options are the fields of queries, beside those with commands of their own."""


def test_the_help_imports_no_command() -> None:
    modules = imported(["--help"])
    assert "typer" in modules
    assert modules & {*ELSEWHERE, *STORE, "asyncio", "pydantic", "store.models", "store.cli.commands"} == set()


def test_the_help_of_a_command_imports_neither_a_store_nor_models() -> None:
    names = get_group(app).commands.keys() - {"ls", "export", *FILTERING}
    modules = imported(*([name, "--help"] for name in sorted(names)))
    assert modules & {*ELSEWHERE, *STORE, "store.models", "store.domain.events"} == set()


def test_the_help_of_commands_that_filter_imports_models_but_no_store() -> None:
    # Their options are the fields of queries.
    lists = (["ls", "--help"], ["ls", "rollouts", "--help"], ["ls", "spans", "--help"])
    exports = (["export", "--help"], ["export", "parquet", "--help"], ["export", "sqlite", "--help"])
    commands = [[name, "--help"] for name in FILTERING]
    modules = imported(*lists, *exports, *commands)
    assert "store.models" in modules
    assert modules & (ELSEWHERE | STORE) == set()


UNUSED_BY = {
    "stats": {"store.models", "store.domain.events", "store.sql.store", "store.journal"},
    "ls rollouts": {"store.sql.log", "store.verification"},
    "ls spans ROLLOUT": {"store.sql.log", "store.verification"},
    "show ROLLOUT": set[str](),
    "history ROLLOUT": set[str](),
    "verify": set[str](),
    "doctor": {"store.sql"},
    "enqueue 1": {"store.sql.log", "store.verification"},
    "keys ls": {"store.sql.log", "store.verification"},
}


def test_a_command_imports_only_modules_that_it_needs(filled_file: Filled) -> None:
    commands = [[filled_file.retried if word == "ROLLOUT" else word for word in line.split()] for line in UNUSED_BY]
    printed = run(IN_CHILDREN, json.dumps(commands), url=filled_file.url).stdout.splitlines()
    needless = {
        line: sorted(set(modules.split()) & (ELSEWHERE | UNUSED | unused))
        for (line, unused), modules in zip(UNUSED_BY.items(), printed, strict=True)
    }
    assert needless == {line: [] for line in UNUSED_BY}
    assert all("store.db.dialect" in modules.split() for modules in printed)


# A client needs the models and the protocol.
NOT_IN_A_CLIENT = {
    *("sqlalchemy", "fastapi", "starlette", "opentelemetry", "google.protobuf", "store.otel.decode", "store.journal"),
    *("store.domain.commands", "store.domain.events", "store.db.dialect", "store.sql.commands", "store.sql.core"),
}
# A runner may use a store over HTTP, and imports its client when it opens the store.
NOT_IN_A_TRAINER = {
    *("fastapi", "uvicorn", "aiohttp", "google.protobuf", "store.client", "store.sql", "store.server.app"),
    *("openai", "anthropic", "langchain_core", "litellm", "numpy", "torch", "transformers"),
}
# Scheduled operations run in processes of their own, and other operations are commands.
NOT_IN_A_SERVER = {
    *("typer", "rich", "aiohttp", "alembic", "asyncpg", "store.client", "store.training", "store.llm_proxy"),
    *("store.operations.copying", "store.operations.doctor", "store.operations.removal"),
    *("store.verification.verify", "store.verification.sample", "store.db.drivers.postgres"),
}


@pytest.mark.parametrize(
    "module,unused",
    [
        ("store.client", NOT_IN_A_CLIENT),
        ("store.training.trainer", NOT_IN_A_TRAINER),
        ("store.server.app", NOT_IN_A_SERVER),
        ("store.operations", {"sqlalchemy", "store.models", "store.operations.copying", "store.operations.doctor"}),
    ],
)
def test_package_does_not_import_optional_modules(module: str, unused: set[str]) -> None:
    loaded = set(run(f"import sys, {module}; print(*sys.modules)").stdout.split())
    assert module in loaded
    assert loaded & unused == set()


def test_no_decoder_is_built_before_its_first_use() -> None:
    program = """
from store.wire import encoding
for decode in (encoding.decode_rollout, encoding.decode_rollouts, encoding.decode_run_events, encoding.decode_seal):
    print(decode.__self__.pydantic_complete)
"""
    assert run(program).stdout.split() == ["False"] * 4


def test_no_garbage_is_collected_while_a_short_command_runs(filled_file: Filled) -> None:
    program = """
import atexit, gc, sys
from store.cli import main
collections = []
gc.callbacks.append(lambda *_: collections.append(1))
atexit.register(lambda: print(len(collections), file=sys.stderr))
main()
"""
    assert run(program, "show", filled_file.retried, url=filled_file.url).stderr == "0\n"
