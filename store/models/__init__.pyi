from store.models.annotations import AnnotateResult as AnnotateResult, Annotations as Annotations, Note as Note
from store.models.enums import (
    UNSET as UNSET,
    AttemptStatus as AttemptStatus,
    FilterLogic as FilterLogic,
    RolloutMode as RolloutMode,
    RolloutStatus as RolloutStatus,
    SortOrder as SortOrder,
    StatusCode as StatusCode,
    TaskInput as TaskInput,
    Unset as Unset,
    WorkerStatus as WorkerStatus,
)
from store.models.log import (
    Difference as Difference,
    History as History,
    HistoryEvent as HistoryEvent,
    LoggedEvent as LoggedEvent,
    LogPosition as LogPosition,
    RebuildReport as RebuildReport,
    Seal as Seal,
    VerifyReport as VerifyReport,
)
from store.models.pages import (
    LightningStoreCapabilities as LightningStoreCapabilities,
    LightningStoreStatistics as LightningStoreStatistics,
    PaginatedResult as PaginatedResult,
)
from store.models.phases import (
    CascadeMask as CascadeMask,
    Checkpoint as Checkpoint,
    Condition as Condition,
    Mask as Mask,
    Overlay as Overlay,
    Phase as Phase,
    PhaseGraph as PhaseGraph,
    ScopeKind as ScopeKind,
    SideEffects as SideEffects,
    all_of as all_of,
    any_of as any_of,
)
from store.models.queries import (
    ArtifactQuery as ArtifactQuery,
    AttemptQuery as AttemptQuery,
    CheckpointQuery as CheckpointQuery,
    ResourcesQuery as ResourcesQuery,
    RolloutQuery as RolloutQuery,
    RunEventQuery as RunEventQuery,
    SpanQuery as SpanQuery,
    WorkerQuery as WorkerQuery,
)
from store.models.resources import (
    LLM as LLM,
    NamedResources as NamedResources,
    PromptTemplate as PromptTemplate,
    ProxyLLM as ProxyLLM,
    Resource as Resource,
    ResourcesUpdate as ResourcesUpdate,
    ResourceUnion as ResourceUnion,
)
from store.models.prices import (
    CostLine as CostLine,
    CostReport as CostReport,
    ModelPrice as ModelPrice,
    PriceTable as PriceTable,
)
from store.models.queries import UsageQuery as UsageQuery
from store.models.rollouts import (
    Attempt as Attempt,
    AttemptedRollout as AttemptedRollout,
    AttemptError as AttemptError,
    EnqueueRolloutRequest as EnqueueRolloutRequest,
    Rollout as Rollout,
    RolloutConfig as RolloutConfig,
    Worker as Worker,
)
from store.models.run_frames import (
    RunFrame as RunFrame,
    RunFrameKind as RunFrameKind,
    RunOutcome as RunOutcome,
    apply_frames as apply_frames,
)
from store.models.runs import (
    Artifact as Artifact,
    ArtifactRef as ArtifactRef,
    AttemptDiff as AttemptDiff,
    AttemptKind as AttemptKind,
    AttemptNode as AttemptNode,
    CheckpointRef as CheckpointRef,
    Degraded as Degraded,
    Fork as Fork,
    ForkKind as ForkKind,
    ForkPlan as ForkPlan,
    ForkResult as ForkResult,
    GraphColumn as GraphColumn,
    GraphEdge as GraphEdge,
    GraphNode as GraphNode,
    NodeChange as NodeChange,
    NodeDifference as NodeDifference,
    NodeRun as NodeRun,
    NodeStatus as NodeStatus,
    OnActive as OnActive,
    OnMissing as OnMissing,
    RunEvent as RunEvent,
    RunEventPage as RunEventPage,
    RunEventRow as RunEventRow,
    RunGraph as RunGraph,
    SearchIn as SearchIn,
    Snapshot as Snapshot,
)
from store.models.scores import (
    NewScore as NewScore,
    RewardVersion as RewardVersion,
    Score as Score,
    ScoreError as ScoreError,
)
from store.models.spans import (
    Attributes as Attributes,
    AttributeValue as AttributeValue,
    Event as Event,
    Link as Link,
    OtelResource as OtelResource,
    Span as Span,
    SpanContext as SpanContext,
    TraceStatus as TraceStatus,
)
from store.models.trainer_metrics import Metric as Metric, MetricsQuery as MetricsQuery
from store.models.usage import UsageReport as UsageReport, UsageSum as UsageSum
