"""A command of the command line: the number of rollouts."""

from tests.recipes.scratch import Recipe, Scratch

_COMMAND = '''"""`rollbook count`: the number of rollouts."""

from __future__ import annotations

import typer

from store.cli.options import DEFAULT_DB, Db
from store.cli.output.printing import line
from store.cli.store_context import run_reading

app = typer.Typer()


@app.command("count", rich_help_panel="Look")
def count(db: Db = DEFAULT_DB) -> None:
    """Print the number of rollouts."""
    line(str(run_reading(db, lambda store: store.query_rollouts(limit=0)).total))
'''


def _apply(scratch: Scratch) -> None:
    scratch.create("store/cli/commands/count.py", _COMMAND)


RECIPE = Recipe(
    "command",
    1,
    _apply,
    '''"""The command works, and the help lists it."""

import asyncio

from typer.testing import CliRunner

from store import open_store
from store.cli.app import app


async def fill(url):
    async with await open_store(url) as store:
        await store.enqueue_rollout("task")


def run(*arguments):
    return CliRunner().invoke(app, arguments, catch_exceptions=False).output


def test_the_command_and_its_help(tmp_path):
    url = f"sqlite:///{tmp_path / 'run.db'}"
    asyncio.run(fill(url))
    assert run("count", "--db", url).strip() == "1"
    assert "Print the number of rollouts" in run("--help")
''',
)
