"""Rollbook: an event-sourced, SQL-backed rollout store for agent training.

    import rollbook

    async with rollbook.open_store("sqlite:///run.db") as opened:
        await opened.enqueue_rollout({"question": "…"})

The names in this module are public. If Agent-lightning 0.3 has a public name too, the name means the same in both
packages. All other names may be imported, but may change.

An installation contains this package as `rollbook`, with the alias `store`. In the source tree, the package is named
`store`.
"""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_exports(__name__)
