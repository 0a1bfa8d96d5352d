"""Example: tuning a search engine over the documentation of this machine's Python; the parts share only a store.

A `Trainer` runs an algorithm that proposes rankings, and four runner processes that evaluate them: 4,840 rollouts in
one database. One runner is killed during the run; its rollouts return to the queue and other runners finish them. The
example needs no network and no model.
"""

from __future__ import annotations

__all__ = ["learn_live", "main"]


def main(db_url: str, *, seed: int = 0, runners: int = 4, quiet: bool = False) -> int:
    """Run the whole job on a database and print the result; return the exit code for a shell.

    A run that was interrupted or killed is continued.

    0: every rollout succeeded, at least one of them after its runner was killed, and the log was verified.
    1: one of these conditions failed. 3: `verify` or `rebuild` found a difference. 130: interrupted; finished rollouts
    are kept.

    Args:
        db_url: the database of the run; created if missing. Earlier runs in it are kept.
        seed: the seed for the choice of queries and of the rankings.
        runners: the number of processes that answer queries.
        quiet: print only the result, no progress.

    Raises:
        StoreError: the database cannot be opened, or its connection was lost.
    """
    # The runners also import this package, but do not need the job, so it is imported here.
    from store.examples.doc_search.algorithm import Job
    from store.examples.doc_search.job import run

    return run(db_url, Job(seed=seed), runners=runners, quiet=quiet)


def learn_live(db_url: str, *, seed: int = 0, quiet: bool = False) -> int:
    """Answer queries and learn from the results until Ctrl+C; return the exit code 130.

    After every fifty ended rollouts, another version of the ranking is published together with a cursor of the log at
    which the next fifty begin. So a restarted process misses no rollout and learns from none twice.

    Args:
        db_url: the database; created if missing.
        seed: the seed for the queries and the rankings.
        quiet: print only the last line.

    Raises:
        StoreError: the database cannot be opened, or its connection was lost.
    """
    from store.examples.doc_search.job import run_live

    return run_live(db_url, seed=seed, quiet=quiet)
