"""Example: tuning a search engine over the functions of this machine's Python standard library.

An algorithm proposes rankings, which are parameters of the search engine. Four runner processes evaluate the rankings.
The algorithm and the runners share only the store, which is a database. Each evaluation of a ranking with a query is a
rollout; there are 4,840 rollouts. One runner is killed on purpose. The unfinished rollouts of this runner return to the
queue, and other runners finish them. The example needs no network and no language model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.models import HistoryEvent

__all__ = ["learn_live", "main"]


def main(
    db_url: str,
    *,
    seed: int = 0,
    runners: int = 4,
    new: bool = False,
    quiet: bool = False,
    describe: Callable[[HistoryEvent], str] | None = None,
) -> int:
    """Run the whole job with a database as the store, and print the result.

    A run is one execution of the whole job. If the database contains an unfinished run with the same parameters, this
    run is continued. If all such runs have finished, the report of the last run is printed again.

    Args:
        db_url: the URL of the database. A missing database is created. Earlier runs in the database are kept.
        seed: the seed for the choice of queries and of rankings.
        runners: the number of processes that answer queries.
        new: whether to start a new run if the last run has finished.
        quiet: whether to print only the result and no progress.
        describe: a function that returns a sentence about an event of a history, for the report.

    Returns:
        The exit code for a shell. 0: every rollout succeeded, at least one rollout was retried after its runner was
        killed (unless the run was continued or reported again), and the log was verified. 1: some rollout failed, or no
        rollout of the killed runner was retried. 3: `verify` or `rebuild` found a difference between the log and the
        tables. 130: the run was interrupted; finished rollouts are kept.

    Raises:
        StoreError: the database cannot be opened, or its connection was lost.
    """
    # The runners also import this package, but do not need the job. So the job is imported only here.
    from store.examples.doc_search.algorithm import Job
    from store.examples.doc_search.job import run

    return run(db_url, Job(seed=seed), runners=runners, new=new, quiet=quiet, describe=describe)


def learn_live(db_url: str, *, seed: int = 0, quiet: bool = False) -> int:
    """Answer queries, and learn from the results, until Ctrl+C.

    Each query is a rollout. After every fifty ended rollouts, the next version of the ranking is published, together
    with the position in the log at which the next fifty rollouts begin. So a restarted process misses no rollout, and
    learns from no rollout twice.

    Args:
        db_url: the URL of the database. A missing database is created.
        seed: the seed for the queries and the rankings.
        quiet: whether to print only the last line.

    Returns:
        The exit code for a shell: 130 after Ctrl+C, 1 if a query failed.

    Raises:
        StoreError: the database cannot be opened, or its connection was lost.
    """
    from store.examples.doc_search.job import run_live

    return run_live(db_url, seed=seed, quiet=quiet)
