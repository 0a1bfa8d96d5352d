"""`rollbook scatter`: two numbers of the rollouts of a selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db, Prices
from store.cli.output.printing import is_terminal, json_document, note, printable
from store.cli.output.tables import Column, print_table
from store.cli.store_context import run_reading

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models.exploring import Scatter, ScatterPoint

app = typer.Typer()

_POINTS: Final = 2000
_POINTS_ON_A_TERMINAL: Final = 50


def _bound(axis: str, help_text: str) -> Any:
    return typer.Option(metavar=axis, help=help_text)


@app.command(rich_help_panel="Look")
def scatter(
    x: Annotated[
        str,
        typer.Argument(
            metavar="X",
            help="reward, step, tokens, tokens_in, duration, spans, attempts, calls, cost, tool_calls, tool_errors, "
            "dim:NAME or meta:KEY.",
        ),
    ] = "step",
    y: Annotated[str, typer.Argument(metavar="Y", help="The other number.")] = "reward",
    selection: Annotated[
        str,
        typer.Argument(metavar="SELECTION", help="Filters as in the URL of a list of rollouts, or such a URL."),
    ] = "",
    *,
    db: Db = DEFAULT_DB,
    step: Annotated[int | None, typer.Option(metavar="N", help="Only rollouts of this step.")] = None,
    mode: Annotated[
        list[str] | None, typer.Option(metavar="MODE", help="Only rollouts of this mode; may be repeated.")
    ] = None,
    colour: Annotated[
        str, typer.Option(metavar="status|version|mode|variance|none", help="The field of the last column.")
    ] = "status",
    x_min: Annotated[float | None, _bound("X", "Print only rollouts with at least this X.")] = None,
    x_max: Annotated[float | None, _bound("X", "Print only rollouts with at most this X.")] = None,
    y_min: Annotated[float | None, _bound("Y", "Print only rollouts with at least this Y.")] = None,
    y_max: Annotated[float | None, _bound("Y", "Print only rollouts with at most this Y.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            metavar="N",
            min=1,
            max=_POINTS,
            help="Read at most N rollouts, a sample if more match. The default is 50 on a terminal, 2000 elsewhere.",
        ),
    ] = None,
    prices: Prices = None,
    json: AsJson = False,
) -> None:
    """Show two numbers of the rollouts of a selection, as the page Scatter draws them.

    Rollouts without one of the numbers are left out. Bounds of X and Y are a box; its number of rollouts is printed.
    """
    from store.comparing import scatter as scatter_of
    from store.comparing.scattering import points_in
    from store.comparing.selections import params_in
    from store.models.prices import PriceTable

    options = {name: value for name, value in (("step", step), ("mode", mode or None)) if value is not None}
    text = urlencode({**params_in(selection, "SELECTION"), **options}, doseq=True)
    bounds = {"x_min": x_min, "x_max": x_max, "y_min": y_min, "y_max": y_max}
    points = limit or (_POINTS_ON_A_TERMINAL if is_terminal() and not json else _POINTS)
    table = PriceTable.read(prices)

    async def read(store: Store) -> Scatter:
        return await scatter_of(store, x, y, text, colour=colour, points=points, prices=table, **bounds)

    answer = run_reading(db, read)
    if json:
        json_document(answer.model_dump())
        return
    title = answer.y if answer.y != answer.x else f"{answer.y} (y)"
    columns: list[Column[ScatterPoint]] = [
        Column("rollout", lambda point: point.rollout_id),
        Column(printable(answer.x), lambda point: f"{point.x:.10g}", right=True),
        Column(printable(title), lambda point: f"{point.y:.10g}", right=True),
    ]
    if answer.colour is not None:
        columns.append(Column(answer.colour, lambda point: point.colour or "", is_status=answer.colour == "status"))
    print_table(columns, points_in(list(bounds.values()), answer.points))
    note(f"{len(answer.points):,} of {answer.sampled:,} rollouts that were read have both numbers")
    if answer.sampled < answer.matching:
        note(f"these are a sample of {answer.matching:,}; -n reads more, at most {_POINTS:,}")
    if answer.events_behind:
        note(f"calls and costs are incomplete: {answer.events_behind:,} events are not counted yet")
    if answer.box is not None:
        selected = "" if answer.box.selection is None else f"; the selection of the box is '{answer.box.selection}'"
        note(f"{answer.box.points:,} rollouts are in the box{selected}")
