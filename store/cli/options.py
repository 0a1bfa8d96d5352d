"""Options that several commands share."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from store.cli.output.times import moment, seconds_in
from store.domain.statuses import RolloutStatus, WorkerStatus

DEFAULT_DB: Final = "sqlite:///rollbook.db"


def _moment(text: str) -> int | datetime:
    try:
        return moment(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def lifetime(text: str) -> float:
    """Return a lifetime such as `30d` or `12h` in seconds."""
    try:
        return seconds_in(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _statuses(allowed: Any) -> Any:
    words: tuple[str, ...] = get_args(allowed)

    def status(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(words)}")
        return text

    return typer.Option(
        "--status", parser=status, metavar="STATUS", help=f"One of {', '.join(words)}; may be repeated."
    )


Db = Annotated[
    str,
    typer.Option(
        envvar="ROLLBOOK_DB",
        metavar="URL",
        help="The store: sqlite:///run.db or postgresql://host/database?partition=name.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# Typer requires a single class. With a parser, any class works.
AsAt = Annotated[
    Any,
    typer.Option(
        parser=_moment,
        metavar="POSITION|TIME",
        help="Show the store as of a position of the log or a time: 2026-11-20T02:00:00Z, '2026-11-20 03:00' (local"
        " time), '10m ago'.",
    ),
]
Sort = Annotated[str | None, typer.Option(metavar="FIELD", help="Sort by this field; --json shows the fields.")]
Descending = Annotated[bool, typer.Option("--desc", help="Sort in descending order: the greatest or newest first.")]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", "-n", metavar="N", min=-1, help="Show at most N, -1 for all; the default is 50 on a terminal."
    ),
]
Offset = Annotated[int, typer.Option(metavar="N", min=0, help="Skip the first N.")]
RolloutStatuses = Annotated[list[Any] | None, _statuses(RolloutStatus)]
WorkerStatuses = Annotated[list[Any] | None, _statuses(WorkerStatus)]
AnyOf = Annotated[bool, typer.Option("--any", help="Match any condition instead of all.")]
Ids = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="With exactly this id; may be repeated.")]
IdContains = Annotated[str | None, typer.Option("--id-contains", metavar="TEXT", help="With an id that contains this.")]
OfRollout = Annotated[str, typer.Option("--rollout", metavar="ID", help="Of this rollout: its id or the beginning.")]
OfAttempt = Annotated[
    str | None, typer.Option(metavar="ID", help="Of this attempt: its id or the beginning, its number, or latest.")
]
RolloutId = Annotated[str, typer.Argument(metavar="ID", help="A rollout's id, or its beginning.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id (that of its rollout), or the beginning.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="The reason, for the log.")]


class OrphanChoice(Enum):
    """The actions of a pipeline's runner on runs whose process died."""

    RESUME = "resume"
    FAIL = "fail"


Orphans = Annotated[
    OrphanChoice, typer.Option(help="With --pipeline: resume runs whose process died, or leave them failed.")
]
ConfirmResumes = Annotated[
    bool,
    typer.Option(
        "--confirm-side-effects", help="With --pipeline: resume runs even if unsafe side effects may happen twice."
    ),
]
Fallback = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Continue runs of --pipeline in folders below DIR while the store is unavailable, and import them.",
    ),
]
