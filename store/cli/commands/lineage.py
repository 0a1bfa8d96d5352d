"""`rollbook lineage`, `compare` and `undo`: the attempts of a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from store.cli import lookup
from store.cli.options import DEFAULT_DB, AsJson, Db, Reason, RunId
from store.cli.output.printing import is_terminal, json_document, line, note, tree
from store.cli.output.tables import Column, print_table, time_column
from store.cli.store_context import run_reading, run_writing
from store.errors import Invalid

if TYPE_CHECKING:
    from store.interface.store import Store
    from store.models import AttemptDiff, AttemptNode, NodeDifference

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class _Branch:
    """An attempt, and the characters that draw its branch in the tree of attempts."""

    lead: str
    node: AttemptNode


def _fork_text(node: AttemptNode) -> str:
    from store.planning.plan import of_fork

    return "" if node.fork is None else of_fork(node.fork)


_LINEAGE: Final[tuple[Column[_Branch], ...]] = (
    Column(
        "#",
        lambda branch: str(branch.node.sequence_id),
        lambda branch, _: f"{branch.lead}{branch.node.sequence_id}",
    ),
    Column("head", lambda branch: "head" if branch.node.is_head else ""),
    Column("kind", lambda branch: branch.node.kind),
    Column("base", lambda branch: "" if branch.node.base is None else str(branch.node.base), right=True),
    Column("status", lambda branch: branch.node.status, is_status=True),
    Column("again", lambda branch: _fork_text(branch.node)),
    Column("events", lambda branch: str(branch.node.events), right=True),
    time_column("started", lambda branch: branch.node.start_time),
    Column("attempt", lambda branch: branch.node.attempt_id),
    Column("reason", lambda branch: (branch.node.fork and branch.node.fork.reason) or "", shrinks=True),
)

_COMPARED: Final[tuple[Column[NodeDifference], ...]] = (
    Column("scope", lambda node: node.scope or ""),
    Column("node", lambda node: node.node_id),
    Column("under", lambda node: node.parent_node_id or ""),
    Column("time", lambda node: str(node.ordinal), lambda node, _: "" if node.ordinal == 1 else str(node.ordinal)),
    Column("change", lambda node: node.change),
    Column("failed", lambda node: "failed" if node.failed else ""),
    Column("answer", lambda node: "" if node.same_response is None else "same" if node.same_response else "other"),
    Column("before", lambda node: "" if node.before is None else str(node.before.version), right=True),
    Column("after", lambda node: "" if node.after is None else str(node.after.version), right=True),
    Column("differences", lambda node: _numbers(node.deltas), shrinks=True),
)


@app.command(rich_help_panel="Runs")
def lineage(prefix: RunId, *, db: Db = DEFAULT_DB, json: AsJson = False) -> None:
    """List the attempts of a run, with the base of each attempt and the part that it re-ran, and mark the head."""

    async def read(store: Store) -> list[AttemptNode]:
        return await store.runs.list_lineage(await lookup.rollout(store, prefix))

    nodes = run_reading(db, read)
    if json:
        json_document([node.model_dump() for node in nodes])
        return
    below: defaultdict[int | None, list[AttemptNode]] = defaultdict(list)
    for node in nodes:
        below[node.base].append(node)

    def children(node: AttemptNode) -> list[AttemptNode]:
        return below[node.sequence_id]

    print_table(_LINEAGE, [_Branch(lead, node) for lead, node in tree(below[None], children)])


@app.command(rich_help_panel="Runs")
def compare(
    prefix: RunId,
    a: Annotated[int, typer.Argument(metavar="A", min=1, help="The number of an attempt.")],
    b: Annotated[int, typer.Argument(metavar="B", min=1, help="The number of another attempt.")],
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show unchanged nodes, which a terminal omits.")
    ] = False,
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Compare two attempts node by node, including the parts that an attempt took over from an earlier attempt."""

    async def read(store: Store) -> AttemptDiff:
        return await store.runs.compare_attempts(await lookup.rollout(store, prefix), a, b)

    comparison = run_reading(db, read)
    if json:
        json_document(comparison.model_dump())
        return
    is_short = is_terminal() and not everything
    rows = [node for node in comparison.nodes if node.change != "kept"] if is_short else comparison.nodes
    if rows or not is_terminal():
        print_table(_COMPARED, rows)
    note(", ".join(f"{count:,} {change}" for change, count in comparison.counts.items()))
    if totals := _numbers(comparison.totals):
        note(f"in total: {totals}")
    if comparison.state_patch:
        note(f"attempt {b} started with changes of the state: {', '.join(sorted(comparison.state_patch))}")


def _numbers(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:+,.6g}" for name, value in numbers.items() if value)


@app.command(rich_help_panel="Runs")
def undo(
    prefix: RunId,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="ATTEMPT",
            help="The number or id of the new head; by default, the attempt on which the latest re-run builds.",
        ),
    ] = None,
    reason: Reason = None,
    db: Db = DEFAULT_DB,
    json: AsJson = False,
) -> None:
    """Undo a re-run, or redo it: make another attempt the head of the run. Nothing is deleted."""

    async def move(store: Store) -> tuple[str, int, int]:
        run_id = await lookup.rollout(store, prefix)
        nodes = {node.sequence_id: node for node in await store.runs.list_lineage(run_id)}
        head = next((node for node in nodes.values() if node.is_head), None)
        if head is None:
            raise Invalid("RUN", f"{run_id} has no attempts yet")
        if to is None:
            target = _base_of_latest_rerun(nodes, head)
        else:
            attempt_id = await lookup.attempt(store, run_id, to)
            target = next(node.sequence_id for node in nodes.values() if node.attempt_id == attempt_id)
        await store.runs.move_head(run_id, nodes[target].attempt_id, reason=reason)
        return run_id, head.sequence_id, target

    run_id, before, now = run_writing(db, move)
    if json:
        json_document({"rollout_id": run_id, "from": before, "to": now})
        return
    line(f"{run_id}\tattempt {now}" if not is_terminal() else f"the head of {run_id} is attempt {now}")
    note(f"attempt {before} is kept; `--to {before}` goes back to it")


def _base_of_latest_rerun(nodes: dict[int, AttemptNode], head: AttemptNode) -> int:
    """Return the number of the attempt on which the latest re-run of the run builds.

    The latest re-run is the head or, if the head resumed an interrupted attempt, that attempt.

    Raises:
        Invalid: the head is not a re-run.
    """
    node = head
    while node.fork is not None:
        if node.fork.kind != "resume":
            return node.fork.base
        node = nodes[node.fork.base]
    raise Invalid("--to", f"attempt {head.sequence_id} is not a re-run; give the attempt that should be the head")
