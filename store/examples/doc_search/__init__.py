"""Tuning a search engine over the documentation of this machine's Python, with nothing but the store between all parts.

A `Trainer` runs an algorithm, which proposes rankings, and four runner processes, which judge them: 4,840 rollouts on
one database. One runner is killed on the way; what it held comes back and is finished by others. No network, no model.
"""

from __future__ import annotations

__all__ = ["learn_live", "main"]


def main(db_url: str, *, seed: int = 0, runners: int = 4, quiet: bool = False) -> int:
    """Run the whole job on a database and print what came of it; return the exit code for a shell.

    A run that did not come to its end, whoever killed it, is taken up again where it was.

    0: tuned, every rollout succeeded, at least one of them after its runner was killed, and the log proved it all.
    1: something of that did not happen. 3: `verify` or `rebuild` found a difference. 130: interrupted; what was done is
    kept.

    Args:
        db_url: where to store the run; created if missing. Earlier runs in it stay, this one is added.
        seed: of the choice of queries and of the rankings tried.
        runners: how many processes answer queries.
        quiet: print the result alone, no progress.

    Raises:
        StoreError: the database cannot be opened, or was lost on the way.
    """
    # The runners import this package too, and need nothing of the job.
    from store.examples.doc_search.algorithm import Job
    from store.examples.doc_search.job import run

    return run(db_url, Job(seed=seed), runners=runners, quiet=quiet)


def learn_live(db_url: str, *, seed: int = 0, quiet: bool = False) -> int:
    """Answer one query after the other, learn from what comes of them, and return the exit code after Ctrl+C: 130.

    Every fifty rollouts that ended give another version of the ranking, published together with the place in the log
    behind which the next fifty begin: whoever starts again misses none and learns from none twice.

    Args:
        db_url: where to keep it all; created if missing.
        seed: of the queries that may be asked, and of the rankings tried.
        quiet: print the last line alone.

    Raises:
        StoreError: the database cannot be opened, or was lost on the way.
    """
    from store.examples.doc_search.job import run_live

    return run_live(db_url, seed=seed, quiet=quiet)
