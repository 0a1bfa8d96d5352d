"""`rollbook effect` and `rollbook compare-selections`: what a version of a prompt changed, and two selections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db, FailedAs, Prices, missing_choice
from store.cli.output.printing import json_document, line, note, printable
from store.cli.output.tables import Column, print_table
from store.cli.store_context import run_reading
from store.models.missing_rewards import MissingReward
from store.models.prices import PriceTable

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models.comparisons import (
        ComparedMeasure,
        ComparedSide,
        ComparedTask,
        EstimatedDifference,
        SelectionComparison,
        VersionChange,
        VersionEffect,
    )

app = typer.Typer()

_NOTHING: Final = "-"

Pairs = Annotated[bool, typer.Option("--pair/--no-pair", help="Pair rewards by task where tasks recur.")]


def _number(value: float | None, digits: int = 3) -> str:
    return _NOTHING if value is None else f"{value:.{digits}f}"


def _interval(difference: EstimatedDifference | None, digits: int = 3) -> str:
    if difference is None or difference.margin is None:
        return _NOTHING
    return f"± {difference.margin:.{digits}f}"


def _difference(difference: EstimatedDifference | None, digits: int = 3) -> str:
    return _NOTHING if difference is None else f"{difference.value:+.{digits}f}"


def _digits(measure: ComparedMeasure) -> int:
    """Return the number of decimals of a measure. The cost of one call is a small fraction of a dollar."""
    return 6 if measure.kind == "money" else 3


_CHANGES: Final[tuple[Column[VersionChange], ...]] = (
    Column("version", lambda change: f"{change.resources_id}@{change.version}"),
    Column("against", lambda change: str(change.against), right=True),
    Column("step", lambda change: str(change.step), right=True),
    Column("difference", lambda change: _difference(change.reward.difference), right=True),
    Column("95%", lambda change: _interval(change.reward.difference), right=True),
    Column("meaning", lambda change: _meaning(change.reward.difference)),
    Column("before", lambda change: _number(change.reward.a.mean), right=True),
    Column("after", lambda change: _number(change.reward.b.mean), right=True),
    Column("rewarded before", lambda change: f"{change.a.rewarded}/{change.a.ended}", right=True),
    Column("rewarded after", lambda change: f"{change.b.rewarded}/{change.b.ended}", right=True),
)
_MEASURES: Final[tuple[Column[ComparedMeasure], ...]] = (
    Column("measure", lambda measure: measure.title),
    Column("before", lambda measure: _number(measure.a.mean, _digits(measure)), right=True),
    Column("after", lambda measure: _number(measure.b.mean, _digits(measure)), right=True),
    Column("difference", lambda measure: _difference(measure.difference, _digits(measure)), right=True),
    Column("95%", lambda measure: _interval(measure.difference, _digits(measure)), right=True),
    Column("meaning", lambda measure: _meaning(measure.difference)),
    Column("n before", lambda measure: str(measure.a.count), right=True),
    Column("n after", lambda measure: str(measure.b.count), right=True),
)
_TASKS: Final[tuple[Column[ComparedTask], ...]] = (
    Column("task", lambda task: task.title or task.task[:12], shrinks=True),
    Column("before", lambda task: _number(task.a.mean), right=True),
    Column("after", lambda task: _number(task.b.mean), right=True),
    Column("difference", lambda task: _difference(task.difference), right=True),
    Column("95%", lambda task: _interval(task.difference), right=True),
    Column("n", lambda task: f"{task.a.count}/{task.b.count}", right=True),
)


def _meaning(difference: EstimatedDifference | None) -> str:
    if difference is None or difference.verdict is None:
        return _NOTHING
    return "no difference shown" if difference.verdict == "even" else difference.verdict


@app.command(rich_help_panel="Look")
def effect(
    version: Annotated[
        str | None,
        typer.Argument(metavar="RESOURCES_ID@VERSION", help="The version; without it, all versions are listed."),
    ] = None,
    *,
    db: Db = DEFAULT_DB,
    steps: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="The steps before and after.")] = 4,
    mode: Annotated[str, typer.Option(metavar="MODE", help="The mode of the rollouts; any for all.")] = "train",
    failed_as: FailedAs = "0",
    pair: Pairs = True,
    prices: Prices = None,
    json: AsJson = False,
) -> None:
    """Show what a version of a prompt changed: its first steps against the last steps of the version before."""
    from store.comparing import effect as effect_of
    from store.comparing import effects

    unrewarded, chosen, table = missing_choice(failed_as), None if mode == "any" else mode, PriceTable.read(prices)

    async def one(store: Store) -> VersionEffect:
        assert version is not None
        return await effect_of(
            store, version, mode=chosen, steps=steps, unrewarded=unrewarded, pairs=pair, prices=table
        )

    async def all_of_them(store: Store) -> list[VersionChange]:
        return await effects(store, mode=chosen, steps=steps, unrewarded=unrewarded)

    if version is None:
        changes = run_reading(db, all_of_them)
        if json:
            json_document([change.model_dump() for change in changes])
        else:
            print_table(_CHANGES, changes)
        if not changes:
            note("no version of resources was used at a step after another version")
        return
    answer = run_reading(db, one)
    if json:
        json_document(answer.model_dump())
        return
    line(f"{printable(answer.resources_id)} v{answer.against} -> v{answer.version}, from step {answer.step}")
    _print(answer.comparison)


@app.command("compare-selections", rich_help_panel="Look")
def compare_selections(
    a: Annotated[str, typer.Argument(metavar="A", help="The rollouts before, such as 'step_min=280&step_max=295'.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The rollouts after; a URL of a list of rollouts works too.")],
    *,
    db: Db = DEFAULT_DB,
    failed_as: FailedAs = "0",
    pair: Pairs = True,
    prices: Prices = None,
    json: AsJson = False,
) -> None:
    """Compare two selections of rollouts, written as the filters in the URL of a list of rollouts."""
    from store.comparing import compare_selections as compare

    unrewarded, table = missing_choice(failed_as), PriceTable.read(prices)

    async def read(store: Store) -> SelectionComparison:
        return await compare(store, a, b, unrewarded=unrewarded, pairs=pair, prices=table)

    comparison = run_reading(db, read)
    if json:
        json_document(comparison.model_dump())
    else:
        _print(comparison)


def _print(comparison: SelectionComparison) -> None:
    for name, side in (("before", comparison.a), ("after", comparison.b)):
        line(f"{name:<8} {_counts(side)}")
    how = f"paired by {comparison.common_tasks} tasks" if comparison.is_paired else "not paired"
    line(f"counting {MissingReward.parse(comparison.unrewarded).label}; rewards {how}")
    for warning in comparison.warnings:
        note(warning)
    print_table(_MEASURES, [comparison.reward, *comparison.dimensions, *comparison.measures])
    if comparison.tasks:
        line("")
        print_table(_TASKS, comparison.tasks)


def _counts(side: ComparedSide) -> str:
    steps = "" if side.first_step is None else f", steps {side.first_step} to {side.last_step}"
    return f"{side.rewarded:,} of {side.ended:,} rewarded, {side.failed:,} failed, {side.tasks:,} tasks{steps}"
