"""What creates and upgrades a store: `rollbook demo` and `rollbook migrate`."""

from __future__ import annotations

import asyncio

from store.cli.output.printing import json_document, line


def demo(db: str, *, seed: int, runners: int, continuous: bool, quiet: bool) -> int:
    """Run the job of the example, or answer and learn for ever, and return the exit code."""
    from store.examples import doc_search

    if continuous:
        return doc_search.learn_live(db, seed=seed, quiet=quiet)
    return doc_search.main(db, seed=seed, runners=runners, quiet=quiet)


def migrate(db: str, app_role: str | None, *, json: bool) -> None:
    """Create or upgrade, and print what was done to each partition."""
    from store.db.schema import migrate as bring_to_head

    done = asyncio.run(bring_to_head(db, app_role=app_role))
    if json:
        json_document(
            [
                {
                    "partition": each.partition,
                    "before": each.before,
                    "after": each.after,
                    "copy": None if each.copy is None else str(each.copy),
                }
                for each in done
            ]
        )
        return
    for each in done:
        if each.before is None:
            line(f"{each.partition}: created at revision {each.after}")
        elif not each.is_changed:
            line(f"{each.partition}: was at revision {each.after} already")
        else:
            kept = f", the file from before is kept as {each.copy}" if each.copy else ""
            line(f"{each.partition}: upgraded from revision {each.before} to {each.after}{kept}")
