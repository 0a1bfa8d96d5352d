"""`rollbook export otlp`: spans in the form of OpenTelemetry."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from store.cli.commands.export.collector import collector_parameters, send_to_collector
from store.cli.commands.export.files import export_files, file_options

commands = typer.Typer()

OptionalDirectory = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", file_okay=False, help="A new directory, or that of an export to continue. Not with --to."
    ),
]


def _otlp(directory: Path | None = None, **options: Any) -> None:
    """Spans in the form of OpenTelemetry, as files or to a collector; --forward keeps feeding new ones."""
    if (directory is None) == (options["to"] is None):
        raise typer.BadParameter("give DIR for files, or --to for a collector")
    of_other = ("cursor", "forward", "header") if options["to"] is None else ("split", "split_by", "overwrite")
    if wrong := next((name for name in of_other if options[name]), None):
        place = "a collector" if options["to"] is None else "files"
        raise typer.BadParameter(f"is only for {place}", param_hint=f"--{wrong.replace('_', '-')}")
    if directory is None:
        send_to_collector(options)
    else:
        export_files("otlp", directory, options)


vars(_otlp)["__signature__"] = inspect.Signature(
    [
        inspect.Parameter(
            "directory", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=OptionalDirectory
        ),
        *collector_parameters(),
        *file_options(has_tables=False),
    ]
)
commands.command("otlp", help=inspect.getdoc(_otlp))(_otlp)
