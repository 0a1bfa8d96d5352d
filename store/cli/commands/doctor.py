"""`rollbook doctor`: checks of a store and of this machine, each with a remedy."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

import typer

from store.cli.errors import FAILED, NOT_FOUND, NOT_INTACT, UNAVAILABLE
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import is_terminal, json_document, line, note, printable, working
from store.cli.output.tables import Column, print_table

if TYPE_CHECKING:
    from store.operations import CheckResult

app = typer.Typer()

_KEY_VARIABLE: Final = "ROLLBOOK_API_KEY"
_STYLES: Final = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "dim"}
_CODES: Final = {"damage": NOT_INTACT, "missing": NOT_FOUND, "unavailable": UNAVAILABLE, "other": FAILED}
"""The exit codes for problems, the most important first."""


@app.command(rich_help_panel="Prove")
def doctor(db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """Check the store, its database or server, and this machine, without changing anything, and print remedies.

    Warnings do not change the exit code. It is 3 for damage, 5 if there is no store, 4 if the database or the server
    does not answer, and 1 for other problems.
    """
    # The package imports the drivers of databases, which the help of this command does not need.
    from store.operations import diagnose

    with working("checking"):
        diagnosis = asyncio.run(diagnose(db, api_key=os.environ.get(_KEY_VARIABLE) or None))
    if json:
        json_document(diagnosis.model_dump())
    else:
        if is_terminal():
            width = max(len(check.name) for check in diagnosis.checks)
            for check in diagnosis.checks:
                line(
                    f"{check.outcome:<8} {check.name:<{width}}  {printable(check.found)}", style=_STYLES[check.outcome]
                )
                if check.remedy is not None:
                    line(f"{'':<8} {'':<{width}}  remedy: {printable(check.remedy)}")
        else:
            print_table(_COLUMNS, diagnosis.checks)
        outcomes = [check.outcome for check in diagnosis.checks]
        problems, warnings = outcomes.count("problem"), outcomes.count("warning")
        note(
            f"{_count(problems, 'problem')}, {_count(warnings, 'warning')} in {len(outcomes)} checks of {diagnosis.db}"
        )
    kinds = {check.problem for check in diagnosis.problems}
    if kinds:
        raise typer.Exit(next(code for kind, code in _CODES.items() if kind in kinds))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


_COLUMNS: Final[tuple[Column[CheckResult], ...]] = (
    Column("outcome", lambda check: check.outcome),
    Column("check", lambda check: check.name),
    Column("found", lambda check: check.found),
    Column("remedy", lambda check: check.remedy or ""),
)
