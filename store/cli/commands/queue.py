"""`rollbook enqueue`, `cancel` and `retry`: changes of the queue by hand."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from store.cli import json_lines, lookup
from store.cli.options import DEFAULT_DB, AsJson, Db
from store.cli.output.printing import json_document, line, note
from store.cli.store_context import run_writing
from store.domain.statuses import RolloutMode, RolloutStatus
from store.errors import Conflict, Invalid

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import Rollout

app = typer.Typer()

RolloutIds = Annotated[
    list[str], typer.Argument(metavar="ID…", help="The ids of rollouts, or the beginnings of their ids.")
]


@app.command(rich_help_panel="Make")
def enqueue(
    *,
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[INPUT…]", help="The input of each rollout, as JSON.")
    ] = None,
    db: Db = DEFAULT_DB,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Inputs, one JSON document per line; - reads standard input."
        ),
    ] = None,
    mode: Annotated[RolloutMode | None, typer.Option(help="The purpose of the rollouts.")] = None,
    resources: Annotated[
        str | None, typer.Option(metavar="ID", help="The resources to use; the latest resources by default.")
    ] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="The group of the rollouts.")] = None,
    step: Annotated[int | None, typer.Option(metavar="N", help="The training step of the rollouts.")] = None,
    max_attempts: Annotated[
        int, typer.Option(metavar="N", min=1, help="The maximum number of attempts of each rollout.")
    ] = 1,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The maximum duration of an attempt.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Put rollouts into the queue, all or none, and print their ids."""
    from store.models import EnqueueRolloutRequest, RolloutConfig

    if bool(documents) == (file is not None):
        raise typer.BadParameter("give inputs as JSON, or --file FILE")
    inputs = [_parsed(text) for text in documents or ()] if file is None else json_lines.read("--file", file)
    metadata = {"rollbook.group": group, "rollbook.step": step}
    retried: list[Any] = ["failed", "timeout", "unresponsive"] if max_attempts > 1 else []
    config = RolloutConfig(max_attempts=max_attempts, timeout_seconds=timeout, retry_condition=retried)
    requests = [
        EnqueueRolloutRequest.model_validate(
            {
                "input": input_,
                "mode": mode,
                "resources_id": resources,
                "config": config,
                "metadata": {name: value for name, value in metadata.items() if value is not None},
            }
        )
        for input_ in inputs
    ]
    _print(run_writing(db, _as_operator(lambda store: store.enqueue_many_rollouts(requests))), json=json)


@app.command(rich_help_panel="Make")
def cancel(*, rollouts: RolloutIds, db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """Cancel rollouts that have not ended. Attempts that run are not stopped, but are not retried."""

    async def write(store: Store) -> list[Rollout]:
        targets = await _rollouts_of(store, rollouts)
        for rollout in targets:
            if rollout.status in {"succeeded", "failed"}:
                raise Conflict(f"rollout {rollout.rollout_id} has ended: {rollout.status}", "leave it out")
        return [await _moved(store, rollout, "cancelled", unless={"cancelled"}) for rollout in targets]

    _print(run_writing(db, _as_operator(write)), json=json)


@app.command(rich_help_panel="Make")
def retry(*, rollouts: RolloutIds, db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """Put rollouts that have ended back into the queue, whatever their limit of attempts."""

    async def write(store: Store) -> list[Rollout]:
        targets = await _rollouts_of(store, rollouts)
        for rollout in targets:
            if rollout.status in {"preparing", "running"}:
                raise Conflict(
                    f"rollout {rollout.rollout_id} has not ended: {rollout.status}", "leave it out, or cancel it"
                )
        return [await _moved(store, rollout, "requeuing", unless={"queuing", "requeuing"}) for rollout in targets]

    _print(run_writing(db, _as_operator(write)), json=json)


async def _moved(store: Store, rollout: Rollout, status: RolloutStatus, *, unless: Collection[str]) -> Rollout:
    """Set the status of a rollout, unless it has one of the statuses `unless`, and return the rollout."""
    return rollout if rollout.status in unless else await store.update_rollout(rollout.rollout_id, status=status)


def _as_operator(work: Callable[[Store], Awaitable[Sequence[Rollout]]]) -> Callable[[Store], Awaitable[list[Rollout]]]:
    """Return a function that does the work with `cli` as the actor that the log records."""
    from store.runtime import context

    async def acting(store: Store) -> list[Rollout]:
        before = context.actor.set("cli")
        try:
            return list(await work(store))
        finally:
            context.actor.reset(before)

    return acting


async def _rollouts_of(store: Store, prefixes: Sequence[str]) -> list[Rollout]:
    """Return the rollouts with the given ids or beginnings of ids, without duplicates."""
    ids = dict.fromkeys([await lookup.rollout(store, prefix) for prefix in prefixes])
    rollouts = [await store.get_rollout_by_id(rollout_id) for rollout_id in ids]
    return [rollout for rollout in rollouts if rollout is not None]


def _parsed(text: str) -> Any:
    try:
        # In a locale without UTF-8, Python replaces the bytes of other characters by surrogates.
        return orjson.loads(os.fsencode(text) if any("\udc80" <= character <= "\udcff" for character in text) else text)
    except orjson.JSONDecodeError as error:
        raise Invalid("INPUT", f"{text!r} is not JSON ({error}); put text into double quotes: '\"text\"'") from None


def _print(rollouts: Sequence[Rollout], *, json: bool) -> None:
    if json:
        json_document([rollout.model_dump() for rollout in rollouts])
        return
    for rollout in rollouts:
        line(rollout.rollout_id)
    statuses = {rollout.status for rollout in rollouts}
    note(f"{len(rollouts):,} rollout{'' if len(rollouts) == 1 else 's'} {', '.join(sorted(statuses))}")
