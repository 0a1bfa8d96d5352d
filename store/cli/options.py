"""Options that several commands share."""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from store.cli.output.times import moment, seconds_in
from store.domain.statuses import RolloutStatus, WorkerStatus

DEFAULT_DB: Final = "sqlite:///rollbook.db"

_UNITS: Final = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?b)", re.ASCII)


def parameter(name: str, option: Any, default: Any = None) -> Parameter:
    """Return a parameter of a command, given its annotation with the option."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=option)


def _moment(text: str) -> int | datetime:
    try:
        return moment(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def lifetime(text: str) -> float:
    """Return in seconds the lifetime that a text such as `30d` or `12h` gives."""
    try:
        return seconds_in(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def size(text: str) -> int:
    """Return the size in bytes of a text such as `10GB` or `500MB`."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size; write a number with a unit, for example 10GB or 500MB")
    return round(float(match[1]) * _UNITS[match[2]])


def _rollout_given(context: typer.Context, rollout: str | None) -> str:
    prefix = context.params.get("rollout_alias") if rollout is None else rollout
    if prefix is None:
        raise typer.BadParameter("is missing; `rollbook ls rollouts` lists the ids")
    return prefix


def _statuses(allowed: Any) -> Any:
    words: tuple[str, ...] = get_args(allowed)

    def status(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(words)}")
        return text

    return typer.Option(
        "--status",
        parser=status,
        metavar="STATUS",
        help=f"Show only objects with this status, one of {', '.join(words)}; may be repeated.",
    )


Db = Annotated[
    str,
    typer.Option(
        envvar="ROLLBOOK_DB",
        metavar="URL",
        help="The store: sqlite:///run.db, postgresql://host/database?partition=name, or the URL of a server.",
    ),
]
StoreAlias = Annotated[str | None, typer.Option("--store", metavar="URL", hidden=True, help="An older name of --db.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Do not verify the copy. Verification is about a third of the total time.")
]
# Typer does not accept a union as the type of an option. With a parser, Typer accepts any type.
AsAt = Annotated[
    Any,
    typer.Option(
        parser=_moment,
        metavar="POSITION|TIME",
        help="Show the store as it was at a position of the log or at a time, for example 2026-11-20T02:00:00Z,"
        " '2026-11-20 03:00' (local time) or '10m ago'.",
    ),
]
Sort = Annotated[str | None, typer.Option(metavar="FIELD", help="Sort by this field; --json shows the field names.")]
Descending = Annotated[
    bool | None,
    typer.Option(
        "--desc/--asc", help="The greatest or newest first, or the least or oldest first.", show_default=False
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        metavar="N",
        min=-1,
        help="Show at most N objects; -1 shows all. The default is 50 on a terminal, and all elsewhere.",
    ),
]
Prices = Annotated[
    Path | None,
    typer.Option(
        envvar="ROLLBOOK_PRICES", metavar="FILE", help="A TOML file with the prices of models; see docs/cost.md."
    ),
]
Offset = Annotated[int, typer.Option(metavar="N", min=0, help="Skip the first N objects.")]
RolloutStatuses = Annotated[list[Any] | None, _statuses(RolloutStatus)]
WorkerStatuses = Annotated[list[Any] | None, _statuses(WorkerStatus)]
AnyOf = Annotated[
    bool, typer.Option("--any", help="Show what matches at least one condition, not only what matches all.")
]
RewardVersionOption = Annotated[
    str | None,
    typer.Option(
        "--reward-version",
        metavar="NAME@VERSION",
        help="Take the scores of this version as the rewards, for example helpful@v2; without it, recorded rewards.",
    ),
]
Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="Show only the object with this id; may be repeated.")
]
IdContains = Annotated[
    str | None, typer.Option("--id-contains", metavar="TEXT", help="Show only objects whose id contains this text.")
]
OfRollout = Annotated[
    str | None,
    typer.Argument(
        metavar="ROLLOUT",
        callback=_rollout_given,
        show_default=False,
        help="The rollout to list from: its id, or the beginning of its id.",
    ),
]
# This option is eager, so it is parsed before the argument, whose callback reads it.
RolloutAlias = Annotated[
    str | None,
    typer.Option("--rollout", metavar="ID", hidden=True, is_eager=True, help="An older way to give ROLLOUT."),
]
OfAttempt = Annotated[
    str | None,
    typer.Option(
        metavar="ID", help="Show only spans of this attempt: its id, the beginning of its id, its number, or latest."
    ),
]
RolloutId = Annotated[str, typer.Argument(metavar="ID", help="The id of a rollout, or the beginning of the id.")]
RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="The id of a run (the id of its rollout), or the beginning of the id.")
]
Reason = Annotated[
    str | None, typer.Option(metavar="TEXT", help="The reason for the change; it is recorded in the log.")
]


class OrphanChoice(Enum):
    """What the runner of a pipeline does with a run whose process died: resume the run, or leave the run failed."""

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
        help="Continue runs of --pipeline in folders below DIR while the store is unavailable, then import them.",
    ),
]


FailedAs = Annotated[
    str,
    typer.Option(
        "--failed-as",
        metavar="VALUE",
        help="How ended rollouts without a reward count: 0 or another value for failed ones, out to leave them out.",
    ),
]


def missing_choice(failed_as: str) -> str:
    """Return the choice that `--failed-as` gives: `out`, a value, or a choice of the dashboard such as `ended:0`."""
    # Commands that have no such option do not need the models.
    from store.models.missing_rewards import MissingReward

    text = failed_as if failed_as == "out" or ":" in failed_as else f"failed:{failed_as}"
    return str(MissingReward.parse(text, "--failed-as"))
