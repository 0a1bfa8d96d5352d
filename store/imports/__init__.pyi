from store.imports.following import TraceFollower as TraceFollower
from store.imports.importing import import_rollouts as import_rollouts
from store.imports.otlp import read_otlp as read_otlp
from store.imports.report import ImportResult as ImportResult, Skipped as Skipped
from store.imports.rollouts import (
    SOURCE_KEY as SOURCE_KEY,
    ForeignAttempt as ForeignAttempt,
    ForeignResources as ForeignResources,
    ForeignRollout as ForeignRollout,
)
