from store.comparing.stores import (
    compare_selections as compare_selections,
    effect as effect,
    effects as effects,
)
from store.models.comparisons import (
    SelectionComparison as SelectionComparison,
    VersionChange as VersionChange,
    VersionEffect as VersionEffect,
)
