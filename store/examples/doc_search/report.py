"""Final report of a job that tunes a search engine.

The report shows the gain by the tuning, the effect of a killed runner, the verification of the store's log, the size of
the database, and commands to try next.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from store.examples.doc_search.bm25f import Ranking
from store.examples.doc_search.corpus import FIELDS
from store.runtime.urls import scheme_of, without_passwords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from store.examples.doc_search.algorithm import Job, SearchOutcome
    from store.examples.doc_search.console import Paper
    from store.examples.doc_search.library import Library
    from store.interface.store import Store
    from store.models import HistoryEvent

_RESAMPLES = 2_000
_DEFAULT_DB = "sqlite:///rollbook.db"


@dataclass(frozen=True, slots=True)
class Gain:
    """A mean of paired differences, and the ends of its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def paired_gain(before: Sequence[float], after: Sequence[float], seed: int = 0) -> Gain:
    """Return the mean difference between paired items, with a 95 % confidence interval from bootstrap samples."""
    differences = [new - old for old, new in zip(before, after, strict=True)]
    rng = random.Random(seed)
    means = sorted(statistics.fmean(rng.choices(differences, k=len(differences))) for _ in range(_RESAMPLES))
    return Gain(statistics.fmean(differences), means[round(0.025 * _RESAMPLES)], means[round(0.975 * _RESAMPLES) - 1])


def print_result(paper: Paper, library: Library, outcome: SearchOutcome, job: Job) -> None:
    """Print the numbers of documents and queries, and the results before and after the tuning."""
    gain = paired_gain(outcome.before, outcome.after, job.seed)
    paper.heading("Known-item search")
    paper.line(
        f"{len(library.names):,} functions of the standard library, {len(library.queries):,} queries. Each query is "
        "the first sentence of one function's docstring, searched for in the rest of the function. Only this "
        "function is a correct result, even if other functions would be useful. So the figures compare rankings, but "
        "do not show how good the search is."
    )
    paper.heading(f"Mean reciprocal rank (0 beyond ten) of {len(outcome.held_out)} held-out queries")
    paper.table(
        ("before", "after", "paired difference", "95 % interval"),
        [
            (
                f"{statistics.fmean(outcome.before):.3f}",
                f"{statistics.fmean(outcome.after):.3f}",
                f"{gain.mean:+.3f}",
                f"{gain.low:+.3f} … {gain.high:+.3f}",
            )
        ],
    )
    better = sum(new > old for old, new in zip(outcome.before, outcome.after, strict=True))
    worse = sum(new < old for old, new in zip(outcome.before, outcome.after, strict=True))
    paper.line(f"{_verdict(gain)} {better} queries found their function higher up, {worse} lower down.")
    paper.line(_clearest_gain(outcome))
    paper.heading("The ranking, before and after")
    plain = Ranking.plain(len(FIELDS))
    paper.table(("", *FIELDS, "k1", "b"), [("before", *_figures(plain)), ("after", *_figures(outcome.tuned))])
    paper.heading(
        "The rounds. Each round has other training queries, so only rankings of the same round can be compared"
    )
    paper.table(
        ("round", "best ranking", "mean of all", "seconds"),
        [
            (str(number), f"{result.best:.3f}", f"{result.mean:.3f}", f"{result.seconds:.1f}")
            for number, result in enumerate(outcome.rounds, start=1)
        ],
    )


def _clearest_gain(outcome: SearchOutcome) -> str:
    gains = [new - old for old, new in zip(outcome.before, outcome.after, strict=True)]
    index = max(range(len(gains)), key=gains.__getitem__)
    task = outcome.held_out[index]
    return (
        f'The clearest gain: "{task["query"]}", which is {task["name"]}, '
        f"was {_place(outcome.before[index])} before and is {_place(outcome.after[index])} after."
    )


def _place(reciprocal_rank: float) -> str:
    return f"in place {round(1 / reciprocal_rank)}" if reciprocal_rank else "beyond place ten"


def _verdict(gain: Gain) -> str:
    if gain.low > 0:
        return "The tuned ranking is better: the interval lies above zero."
    if gain.high < 0:
        return "The tuned ranking is worse: the interval lies below zero."
    return "It is not known which ranking is better: the interval contains zero."


def _figures(ranking: Ranking) -> Sequence[str]:
    return [f"{value:.2f}" for value in (*ranking.weights, ranking.k1, ranking.b)]


async def print_survival(
    paper: Paper, store: Store, outcome: SearchOutcome, job: Job, describe: Callable[[HistoryEvent], str] | None = None
) -> bool:
    """Print the effect of the killed runner, and return whether the job survived the kill.

    `describe` returns a sentence about an event of the history of a retried rollout.

    The job survived if all rollouts succeeded, and if at least one rollout of the killed runner was retried. The latter
    is not required of a run that was continued or reported again.
    """
    paper.heading("The runner that was killed")
    loss, retried_after_kill = outcome.loss, _retried_after_kill(outcome)
    if outcome.is_resumed:
        paper.line(
            f"This run was started before; {outcome.already_ended:,} of its rollouts had ended when it was continued."
        )
    if loss is None:
        paper.line("None: the rounds were over before a runner with an unfinished attempt was found.")
    else:
        paper.line(
            f"{loss.worker_id} (pid {loss.pid}) was killed with {len(loss.rollout_ids)} unfinished attempts. The new "
            f"process reported these attempts, and {len(retried_after_kill)} of the rollouts were retried."
        )
    paper.line(
        f"{outcome.rollouts:,} of {job.rollouts:,} rollouts succeeded, {len(outcome.retried)} of them after a retry."
    )
    if examples := retried_after_kill[:1] or outcome.retried[:1]:
        paper.heading(f"One of them, from its history: {examples[0]}")
        events = await store.log.history(examples[0])
        paper.table(("event", "seconds", "actor", "what"), _history_rows(events, describe))
    return (bool(retried_after_kill) or outcome.is_resumed or outcome.is_repeated) and outcome.rollouts == job.rollouts


def _retried_after_kill(outcome: SearchOutcome) -> list[str]:
    """Return the rollouts that the killed runner left unfinished and that were retried."""
    held = outcome.loss.rollout_ids if outcome.loss else []
    return sorted(set(held) & set(outcome.retried))


async def print_proof(paper: Paper, store: Store) -> bool:
    """Print and return whether the tables agree with the log, and stay unchanged if they are rebuilt from the log."""
    paper.heading("Proof")
    verified = await store.log.verify()
    result = "the hash chain is intact, and every row is the fold of its events" if verified.ok else "DIFFERENCES FOUND"
    paper.line(
        f"verify: {verified.events:,} events in {verified.commits:,} commits, {sum(verified.rows.values()):,} rows: "
        f"{result} ({verified.seconds:.1f} s)"
    )
    rebuilt = await store.log.rebuild()
    changed = sum(rebuilt.written.values())
    paper.line(
        f"rebuild: {rebuilt.events:,} events folded anew, {changed} rows changed, state hash "
        f"{'as before' if rebuilt.state_hash == verified.state_hash else 'DIFFERENT'} ({rebuilt.seconds:.1f} s)"
    )
    paper.line(f"state hash {verified.state_hash}")
    paper.line(f"chain head {verified.chain_head}")
    for difference in (*verified.differences, *rebuilt.differences):
        paper.line(
            f"  {difference.check} {difference.key} {difference.field}: {difference.expected} / {difference.found}"
        )
    return verified.ok and not changed and rebuilt.state_hash == verified.state_hash


async def print_size(paper: Paper, store: Store, db_url: str, name: str) -> None:
    """Print the size of the database, and the numbers of its objects, including the objects of earlier runs."""
    counted = await store.statistics()
    paper.heading(f"Contents of the database (this run: {name})")
    kinds = ("rollouts", "attempts", "spans", "resources", "workers")
    rows = [(kind, f"{counted.get(f'total_{kind}', 0):,}") for kind in kinds]
    size = _bytes_on_disk(db_url)
    if size:
        rows.append(("size", f"{size / 1e6:,.1f} MB"))
    paper.table(("", "count"), rows)


def _bytes_on_disk(db_url: str) -> int:
    """Return the size in bytes that a SQLite database has after its next checkpoint; 0 for other databases."""
    if scheme_of(db_url) != "sqlite":
        return 0
    url = urlsplit(db_url)
    with contextlib.closing(sqlite3.connect(f"{Path(url.path[1:]).absolute().as_uri()}?mode=ro", uri=True)) as session:
        ((pages,),) = session.execute("PRAGMA page_count")
        ((page_bytes,),) = session.execute("PRAGMA page_size")
    return pages * page_bytes


def print_next_steps(paper: Paper, db_url: str, outcome: SearchOutcome) -> None:
    """Print commands that show the stored data. Print nothing if the store was in memory."""
    if db_url.startswith("memory:"):
        return
    db = db_option(db_url)
    paper.heading("Try next")
    for rollout_id in _retried_after_kill(outcome)[:1] or outcome.retried[:1]:
        paper.line(f"  rollbook history {rollout_id}{db}")
        paper.line(f"  rollbook show {rollout_id} --at 2{db}")
    for command in ("ui", "ls rollouts", "stats", "verify", "seal rollbook.seal"):
        paper.line(f"  rollbook {command}{db}")


def db_option(db_url: str) -> str:
    """Return the option `--db` for the database, with `***` in place of passwords; empty for the default database."""
    return "" if db_url == _DEFAULT_DB else f" --db '{without_passwords(db_url)}'"


def _history_rows(
    events: Sequence[HistoryEvent], describe: Callable[[HistoryEvent], str] | None
) -> list[tuple[str, str, str, str]]:
    """Return a table row for each event: number, seconds since the first event, actor, and a sentence or the type."""
    first = events[0].at if events else 0.0
    return [
        (
            str(event.number),
            f"{event.at - first:+.3f}",
            event.actor or "",
            event.type if describe is None else describe(event),
        )
        for event in events
    ]
