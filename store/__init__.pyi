from store.client import HTTPStore as HTTPStore, LightningStoreClient as LightningStoreClient
from store.errors import *
from store.interface.store import (
    AsAt as AsAt,
    LightningStore as LightningStore,
    Store as Store,
    SyncStore as SyncStore,
)
from store.models import *
from store.opening import (
    InMemoryLightningStore as InMemoryLightningStore,
    open_store as open_store,
    open_sync as open_sync,
)
from store.replaying import (
    ReplayReport as ReplayReport,
    ReplayStore as ReplayStore,
    replay_as_queue as replay_as_queue,
)
from store.rescoring import AttemptRecord as AttemptRecord, RescoreReport as RescoreReport, rescore as rescore
from store.server import (
    LightningStoreServer as LightningStoreServer,
    LightningStoreThreaded as LightningStoreThreaded,
    StoreServer as StoreServer,
)
from store.training import *
from store.training.running.agent import FunctionalLitAgent as FunctionalLitAgent
from store.training.running.runner import ExecutionEvent as ExecutionEvent
from store.training.tracing.core_fields import SpanRecordingContext as SpanRecordingContext
from store.training.tracing.operations import OperationContext as OperationContext
from store.training.tracing.reward_spans import get_rewards_from_span as get_rewards_from_span

__version__: str
