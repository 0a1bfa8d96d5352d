"""`rollbook export`: rollouts with everything that belongs to them, as files in other formats."""

from __future__ import annotations

import typer

from store.cli.commands.export import bundle, databases, files, log, otlp

app = typer.Typer()
export = typer.Typer(
    name="export",
    help="Export rollouts with everything that belongs to them to files, for other programs.",
    rich_help_panel="Keep",
    no_args_is_help=True,
)
for commands in (files, databases, bundle, otlp, log):
    export.add_typer(commands.commands)
app.add_typer(export)
