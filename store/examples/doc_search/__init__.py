"""Tuning a search engine over the documentation of this machine's Python, with nothing but the store between all parts.

One algorithm process proposes rankings, four runner processes judge them: 4,840 rollouts with four spans each, on one
database. One runner is killed on the way; what it held comes back and is finished by others. No network, no model.
"""

from __future__ import annotations

__all__ = ["main"]


def main(db_url: str, *, seed: int = 0, runners: int = 4, quiet: bool = False) -> int:
    """Run the whole job on a database and print what came of it; return the exit code for a shell.

    0: tuned, every rollout succeeded, at least one of them after its runner was killed, and the log proved it all.
    1: something of that did not happen. 2: the database cannot be shared between processes. 3: `verify` or `rebuild`
    found a difference. 130: interrupted; what was still waiting is cancelled, what was done is kept.

    Args:
        db_url: where to store the run; created if missing. Earlier runs in it stay, this one is added.
        seed: of the choice of queries and of the rankings tried.
        runners: how many processes answer queries.
        quiet: print the result alone, no progress.

    Raises:
        StoreError: the database cannot be opened, or was lost on the way.
    """
    # The runners import this package too, and need nothing of the job.
    from store.examples.doc_search.algorithm import Plan
    from store.examples.doc_search.job import run

    return run(db_url, Plan(seed=seed, runners=runners), quiet=quiet)
