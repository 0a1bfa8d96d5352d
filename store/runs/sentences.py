"""What a fork would do, or did, in words."""

from __future__ import annotations

from collections.abc import Iterator

from store.models.runs import Fork, ForkPlan


def of_fork(fork: Fork) -> str:
    """Return what a fork runs again: `debate of RIG, then decision`."""
    again = " of ".join(part for part in (fork.phase, ", ".join(fork.scopes)) if part)
    return again + (f", then {', '.join(fork.cascade)}" if fork.cascade else "")


def of_plan(plan: ForkPlan) -> Iterator[tuple[str, str]]:
    """Yield what a plan says, each with a word for it."""
    scopes = ", ".join(plan.scopes)
    yield (
        "builds on",
        f"attempt {plan.base}" + ("" if plan.base == plan.head else f", which is not the head ({plan.head})"),
    )
    yield "starts at", f"{plan.entry}, for {scopes}" if plan.entry else f"where {scopes} stopped"
    kept = [f"{each.name} of {each.scope} (version {each.version})" for each in plan.checkpoints]
    yield "from", ", ".join(kept) or "nothing"
    yield "runs again", ", ".join(plan.phases) + (f"; then {', '.join(plan.cascade)}" if plan.cascade else "")
    yield "keeps", _events(plan.kept)
    yield "hides", f"{_events(plan.hidden)} of {plan.nodes} node{'' if plan.nodes == 1 else 's'}"
    if plan.unsafe:
        yield "unsafe", f"{', '.join(plan.unsafe)} would repeat side effects"
    if plan.degraded is not None:
        lacking = ", ".join(plan.degraded.scopes)
        yield "degraded", f"{plan.degraded.phase} needs {plan.degraded.checkpoint}, which {lacking} does not have"
    if plan.graph_changed:
        yield "graph", f"{', '.join(plan.graph_changed)} was taken under another one"


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"
