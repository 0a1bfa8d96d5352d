"""`rollbook cost`: calls of models, their tokens and their cost, by step, version or model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db, Limit, Offset, Prices
from store.cli.output.printing import is_terminal, json_document, note
from store.cli.output.tables import Column, print_table
from store.cli.query_options import with_conditions
from store.cli.store_context import run_reading
from store.models.prices import CostLine, CostReport, PriceTable, cost_text
from store.models.queries import RolloutQuery, UsageQuery
from store.models.usage import UsageKey, UsageReport

if TYPE_CHECKING:
    from store.interface.store import Store

app = typer.Typer()

_DIVISIONS: Final[tuple[str, ...]] = get_args(UsageKey)
_LINES_ON_A_TERMINAL: Final = 50
_NOTHING: Final = "–"  # noqa: RUF001 - the placeholder for a missing value


def _division(text: str) -> str:
    if text not in _DIVISIONS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(_DIVISIONS)}")
    return text


@app.command(rich_help_panel="Look")
@with_conditions("Count")
def cost(
    *,
    query: RolloutQuery,
    db: Db = DEFAULT_DB,
    by: Annotated[
        Any, typer.Option(parser=_division, metavar="|".join(_DIVISIONS), help="The division of the sums.")
    ] = "step",
    prices: Prices = None,
    limit: Limit = None,
    offset: Offset = 0,
    json: AsJson = False,
) -> None:
    """Show calls of models, their tokens and their cost. The first line is the total.

    A reported cost is used as it is. Other costs follow from the price table; without a price, a cost is unknown.
    """
    table = PriceTable.read(prices)
    if limit is None:
        limit = _LINES_ON_A_TERMINAL if is_terminal() and not json else -1
    usage_query = UsageQuery.of(**{**vars(query), "by": by, "limit": limit, "offset": offset})
    report = table.costs(run_reading(db, lambda store: _usage(store, usage_query)))
    if json:
        json_document(report.model_dump())
        return
    total = report.total
    print_table(_columns(report), [total, *report.lines])
    if len(report.lines) < report.keys:
        note(f"{len(report.lines):,} of {report.keys:,}; --limit and --offset choose which")
    if total.priced_calls < total.calls:
        note(f"the cost is that of {total.priced_calls:,} of {total.calls:,} calls")
    if report.unpriced_models:
        note(f"no price: {', '.join(report.unpriced_models)}; --prices names the file with prices")


async def _usage(store: Store, query: UsageQuery) -> UsageReport:
    """Return the usage after the index has reached the present end of the log."""
    head = 0
    while True:
        report = await store.log.usage(query)
        head = head or report.head
        if report.position >= head:
            return report
        note(f"{report.position:,} of {head:,} events read")


def _columns(report: CostReport) -> list[Column[CostLine]]:
    def number(name: str, title: str) -> Column[CostLine]:
        def exact(line: CostLine) -> str:
            value: float | None = getattr(line, name)
            return "" if value is None else str(value)

        def text(line: CostLine, _: float | None) -> str:
            value: int | None = getattr(line, name)
            return _NOTHING if value is None else f"{value:,}"

        return Column(title, exact, text, right=True)

    return [
        Column(report.by, lambda line: line.name),
        number("calls", "calls"),
        number("tokens_in", "tokens_in"),
        number("tokens_cached", "cached"),
        number("tokens_out", "tokens_out"),
        number("tokens_reasoning", "reasoning"),
        Column(
            "cost",
            lambda line: "" if line.cost is None else str(line.cost),
            lambda line, _: cost_text(line.cost, report.currency),
            right=True,
        ),
        number("priced_calls", "priced_calls"),
        Column("models", lambda line: ", ".join(line.models), shrinks=True),
    ]
