"""`rollbook sample`: the rollouts that are farthest from the median reward or length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlencode

import typer

from store.cli.options import DEFAULT_DB, AsJson, Db, FailedAs, missing_choice
from store.cli.output.printing import is_terminal, json_document, note
from store.cli.output.tables import Column, print_table
from store.cli.store_context import run_reading

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models.exploring import RolloutSample, SampledRollout

app = typer.Typer()


def _number(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _reason(row: SampledRollout) -> str:
    if not row.distance:
        return ""
    return "reward" if row.reward_distance == row.distance else "length"


_COLUMNS: Final[tuple[Column[SampledRollout], ...]] = (
    Column("rollout", lambda row: row.rollout_id),
    Column("reward", lambda row: "" if row.reward is None else f"{row.reward:.10g}", right=True),
    Column("counted", lambda row: _number(row.counted, 10), right=True),
    Column("tokens_out", lambda row: "" if row.tokens_out is None else str(row.tokens_out), right=True),
    Column("distance", lambda row: _number(row.distance), right=True),
    Column("because of", _reason),
    Column("step", lambda row: "" if row.step is None else str(row.step), right=True),
    Column("status", lambda row: row.status, is_status=True),
    Column("task", lambda row: row.text or "", shrinks=True),
)


@app.command(rich_help_panel="Look")
def sample(
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
    size: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=200, help="Show at most N.")] = 5,
    failed_as: FailedAs = "0",
    json: AsJson = False,
) -> None:
    """Show the ended rollouts of a step, or of any selection, that are farthest from the median, the farthest first.

    The distance is that of the reward or of the output tokens, in median absolute deviations.
    """
    from store.comparing import sample as sample_of
    from store.comparing.selections import params_in

    unrewarded = missing_choice(failed_as)
    options = {name: value for name, value in (("step", step), ("mode", mode or None)) if value is not None}
    text = urlencode({**params_in(selection, "SELECTION"), **options}, doseq=True)

    async def read(store: Store) -> RolloutSample:
        return await sample_of(store, text, size=size, unrewarded=unrewarded)

    answer = run_reading(db, read)
    if json:
        json_document(answer.model_dump())
        return
    print_table(_COLUMNS, answer.rollouts)
    if not answer.rollouts and is_terminal():
        note("no rollout of the selection has ended")
    for name, spread in (("reward", answer.reward), ("tokens out", answer.tokens)):
        if spread.median is not None:
            note(f"{name}: median {spread.median:.4g}, deviation {spread.deviation:.4g}, {spread.count:,} rollouts")
    note(f"{answer.rewarded:,} of {answer.ended:,} ended rollouts have a reward; --failed-as {answer.unrewarded}")
