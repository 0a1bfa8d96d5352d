from store.comparing.exploring import (
    TrainingCurves as TrainingCurves,
    curves as curves,
    sample as sample,
    scatter as scatter,
)
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
from store.models.exploring import (
    RolloutSample as RolloutSample,
    Scatter as Scatter,
)
