"""Store on collections that you supply: rollouts, attempts, spans, resources and workers, a queue and counters.

The classes have Agent-lightning's names and methods; see docs/backends.md.
"""

from __future__ import annotations

from store.integrations.collections.interface import (
    AtomicLabels,
    AtomicMode,
    Collection,
    FilterField,
    FilterOptions,
    KeyValue,
    LightningCollections,
    Queue,
    SortOptions,
)
from store.integrations.collections.memory import (
    DequeBasedQueue,
    DictBasedKeyValue,
    InMemoryLightningCollections,
    ListBasedCollection,
)
from store.integrations.collections.store import CollectionBasedLightningStore

__all__ = [
    "AtomicLabels",
    "AtomicMode",
    "Collection",
    "CollectionBasedLightningStore",
    "DequeBasedQueue",
    "DictBasedKeyValue",
    "FilterField",
    "FilterOptions",
    "InMemoryLightningCollections",
    "KeyValue",
    "LightningCollections",
    "ListBasedCollection",
    "Queue",
    "SortOptions",
]
