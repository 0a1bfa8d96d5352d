"""`rollbook curves`: rewards, lengths, failures, tokens and costs by step or by time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db, FailedAs, Prices, RewardVersionOption, missing_choice
from store.cli.output.printing import json_document, line, note, printable
from store.cli.output.tables import Column, print_table
from store.cli.output.times import utc
from store.cli.store_context import run_reading

if TYPE_CHECKING:
    from store.comparing import TrainingCurves
    from store.comparing.curve_charts import Chart, Series
    from store.interface.store import Store

app = typer.Typer()

_FIGURES: Final = ("length", "duration", "failures", "tokens", "cost")


@dataclass(frozen=True, slots=True)
class CurveRow:
    """The figures of one line in one bucket, as texts."""

    start: str
    line: str
    rewarded: str
    mean: str
    margin: str
    median: str
    others: dict[str, str]
    """The means of dimensions and the figures of other charts, by chart id."""


def _columns(curves: TrainingCurves) -> list[Column[CurveRow]]:
    def other(chart: Chart) -> Column[CurveRow]:
        title = chart.id if chart.id in _FIGURES else printable(chart.title)
        return Column(title, lambda row: row.others.get(chart.id, ""), right=True)

    return [
        Column(curves.by or "step", lambda row: row.start, right=True),
        Column("line", lambda row: row.line),
        Column("rewarded", lambda row: row.rewarded, right=True),
        Column("mean", lambda row: row.mean, right=True),
        Column("95%", lambda row: row.margin, right=True),
        Column("median", lambda row: row.median, right=True),
        *(other(chart) for chart in curves.charts[1:]),
    ]


def _rows(curves: TrainingCurves) -> list[CurveRow]:
    reward = curves.charts[0]
    rows: list[CurveRow] = []
    for at, start in enumerate(reward.start):
        for series in reward.series:
            if not series.ended[at]:
                continue
            low, high = series.band_low[at], series.band_high[at]
            others = {chart.id: _value(chart, series, start) for chart in curves.charts[1:]}
            version = "" if series.version is None else f"v{series.version} "
            place = utc(start) if reward.by == "time" else f"{start:.0f}"
            if reward.by == "step" and reward.width > 1:
                place += f"-{start + reward.width - 1:.0f}"
            rows.append(
                CurveRow(
                    start=place,
                    line=f"{version}{series.mode or 'no mode'}",
                    rewarded=f"{series.rewarded[at]} of {series.ended[at]}",
                    mean=_number(series.mean_counted[at]),
                    margin="" if low is None or high is None else _number((high - low) / 2),
                    median=_number(series.median[at]),
                    others=others,
                )
            )
    return rows


def _value(chart: Chart, of: Series, start: float) -> str:
    """Return the value of a chart in the bucket that begins at `start`, for the mode and the version of a line."""
    at = chart.start.index(start) if start in chart.start else None
    line_of = next((one for one in chart.series if (one.mode, one.version) == (of.mode, of.version)), None)
    if at is None or line_of is None:
        return ""
    return _number((line_of.mean_counted or line_of.mean)[at])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


@app.command(rich_help_panel="Look")
def curves(
    *,
    db: Db = DEFAULT_DB,
    by: Annotated[
        str | None, typer.Option(metavar="step|time", help="The axis; by default steps, if rollouts have any.")
    ] = None,
    mode: Annotated[
        list[str] | None, typer.Option(metavar="MODE", help="Only rollouts of this mode; may be repeated.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Also show this dimension of rewards; may be repeated.")
    ] = None,
    reward_version: RewardVersionOption = None,
    resources: Annotated[
        str | None, typer.Option(metavar="ID", help="Only rollouts with these resources, with a line per version.")
    ] = None,
    failed_as: FailedAs = "0",
    prices: Prices = None,
    json: AsJson = False,
) -> None:
    """Show rewards, lengths, failures, tokens and costs by step, with the numbers of rollouts behind each mean.

    These are the curves of the page Rewards. Tokens and costs are sums over all rollouts; by time, over ended
    rollouts.
    """
    from store.comparing import curves as curves_of
    from store.models.prices import PriceTable

    options: Any = {
        "by": by,
        "modes": mode or [],
        "names": name or [],
        "reward_version": reward_version or None,
        "resources_id": resources,
        "unrewarded": missing_choice(failed_as),
        "prices": PriceTable.read(prices),
    }

    async def read(store: Store) -> TrainingCurves:
        return await curves_of(store, **options)

    answer = run_reading(db, read)
    if json:
        json_document(asdict(answer))
        return
    if not answer.charts:
        line("no rollout has ended yet, or none has a step" if by == "step" else "no rollout has ended yet")
        return
    print_table(_columns(answer), _rows(answer))
    if answer.events_behind:
        note(f"tokens and costs are incomplete: {answer.events_behind:,} events are not counted yet")
    note(f"95% is half of the interval of the mean, with --failed-as {answer.unrewarded}; lengths are means too")
