"""Public names of the training package, such as `Trainer`, `Runner` and `emit_reward`.

The names are compatible with Agent-lightning, another framework for the training of agents. Importing the package
starts nothing; the module of each name is imported when the name is first used.
"""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
