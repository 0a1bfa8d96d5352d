"""`rollbook metrics`: the numbers that a trainer logged, by step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli.options import DEFAULT_DB, AsAt, AsJson, Db
from store.cli.output.printing import is_terminal, json_document, note
from store.cli.output.tables import Column, print_table
from store.cli.store_context import run_reading

if TYPE_CHECKING:
    from store.models.trainer_metrics import Metric

app = typer.Typer()

_STEPS_ON_A_TERMINAL: Final = 50


@app.command(rich_help_panel="Look")
def metrics(
    names: Annotated[list[str] | None, typer.Argument(help="The names of metrics; by default all.")] = None,
    *,
    db: Db = DEFAULT_DB,
    first_step: Annotated[int | None, typer.Option(help="The first step.")] = None,
    last_step: Annotated[int | None, typer.Option(help="The last step, included.")] = None,
    as_at: AsAt = None,
    json: AsJson = False,
) -> None:
    """Show the metrics that a trainer logged: one line per step, one column per name.

    A number that is not finite is printed as NaN, Infinity or -Infinity. With --json, every value is an object.
    """
    from store.models.trainer_metrics import MetricsQuery

    query = MetricsQuery(names=names or None, first_step=first_step, last_step=last_step, limit=100_000, as_at=as_at)
    logged = run_reading(db, lambda store: store.log.metrics(query))
    if json:
        json_document([metric.model_dump() for metric in logged])
        return
    by_step: dict[int, dict[str, Metric]] = {}
    for metric in logged:
        by_step.setdefault(metric.step, {})[metric.name] = metric
    steps = sorted(by_step)
    if is_terminal() and len(steps) > _STEPS_ON_A_TERMINAL:
        note(f"last {_STEPS_ON_A_TERMINAL} of {len(steps):,} steps; select others with --first-step and --last-step")
        steps = steps[-_STEPS_ON_A_TERMINAL:]
    columns: list[Column[int]] = [Column("step", str, right=True)]
    columns += [
        Column(name, partial(_text, by_step, name), right=True)
        for name in dict.fromkeys(metric.name for metric in logged)
    ]
    print_table(columns, steps)


def _text(by_step: Mapping[int, Mapping[str, Metric]], name: str, step: int) -> str:
    metric = by_step[step].get(name)
    return "" if metric is None else metric.mark or f"{metric.value:g}"
