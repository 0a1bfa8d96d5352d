"""Options that several commands of `rollbook export` have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", file_okay=False, help="A new directory, or that of an export to continue.")
]
Tables = Annotated[
    str | None,
    typer.Option(metavar="NAME,…", help="Export only these tables, for example rollouts,spans. The default is all."),
]
Redact = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD",
        help="Leave out a field: input, metadata, attributes.KEY (KEY may contain *) or TABLE.COLUMN; may be repeated.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete the files of an earlier export in DIR first.")]


def names_in(tables: str | None) -> list[str] | None:
    """Return the names of tables in the value of `--tables`; None for all tables."""
    return None if tables is None else [table.strip() for table in tables.split(",")]
