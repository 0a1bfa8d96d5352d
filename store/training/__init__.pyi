from store.adapters.base import Adapter as Adapter, TraceAdapter as TraceAdapter
from store.adapters.data_proto import DataProtoFields as DataProtoFields, data_proto_fields as data_proto_fields
from store.adapters.messages import OpenAIMessages as OpenAIMessages, TraceToMessages as TraceToMessages
from store.adapters.records import AdaptReport as AdaptReport, Dropped as Dropped, Lost as Lost, Triplet as Triplet
from store.adapters.rewards import RewardMatchPolicy as RewardMatchPolicy
from store.adapters.rows import LeftOut as LeftOut, Trajectories as Trajectories, trajectories as trajectories
from store.adapters.tree import TraceTree as TraceTree
from store.adapters.triplets import (
    LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
    TracerTraceToTriplet as TracerTraceToTriplet,
)
from store.llm_proxy import Backend as Backend, LLMProxy as LLMProxy, ProxySettings as ProxySettings
from store.pipelines.phases import NodeCall as NodeCall, Pipeline as Pipeline, Step as Step
from store.pipelines.pipeline_runner import PipelineBundle as PipelineBundle, PipelineRunner as PipelineRunner
from store.training.algorithms.algorithm import (
    Algorithm as Algorithm,
    Dataset as Dataset,
    FastAlgorithm as FastAlgorithm,
    algo as algo,
    with_llm_proxy as with_llm_proxy,
    with_store as with_store,
)
from store.training.algorithms.baseline import Baseline as Baseline
from store.training.algorithms.fit_report import FitReport as FitReport
from store.training.algorithms.plan import Plan as Plan
from store.training.algorithms.rollout_ends import Finished as Finished, follow as follow
from store.training.execution import (
    ClientServerExecutionStrategy as ClientServerExecutionStrategy,
    ExecutionReport as ExecutionReport,
    ExecutionStrategy as ExecutionStrategy,
    RayExecutionStrategy as RayExecutionStrategy,
    RunnersGone as RunnersGone,
    SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy,
)
from store.training.model_clients.anthropic_spans import instrument_anthropic as instrument_anthropic
from store.training.model_clients.openai_spans import instrument_openai as instrument_openai
from store.training.running.agent import (
    LitAgent as LitAgent,
    UnsupportedSignature as UnsupportedSignature,
    llm_rollout as llm_rollout,
    prompt_rollout as prompt_rollout,
    rollout as rollout,
)
from store.training.running.early_failure import AgentFails as AgentFails
from store.training.running.hooks import Hook as Hook
from store.training.running.outcome import Outcome as Outcome
from store.training.running.runner import LitAgentRunner as LitAgentRunner, Runner as Runner
from store.training.running.stop_event import StopEvent as StopEvent
from store.training.tracer import OtelTracer as OtelTracer, Tracer as Tracer
from store.training.tracing.core_fields import SpanCoreFields as SpanCoreFields
from store.training.tracing.emitters import (
    emit_annotation as emit_annotation,
    emit_annotation_async as emit_annotation_async,
    emit_exception as emit_exception,
    emit_message as emit_message,
    emit_object as emit_object,
    emit_reward as emit_reward,
    emit_reward_async as emit_reward_async,
    get_message_value as get_message_value,
    get_object_value as get_object_value,
)
from store.training.tracing.operations import operation as operation
from store.training.tracing.reward_spans import (
    find_final_reward as find_final_reward,
    find_reward_spans as find_reward_spans,
    get_reward_value as get_reward_value,
    is_reward_span as is_reward_span,
)
from store.training.tracing.scope import (
    AttemptScope as AttemptScope,
    current_scope as current_scope,
    run_in_scope as run_in_scope,
)
from store.training.tracing.span_attributes import (
    make_link_attributes as make_link_attributes,
    make_tag_attributes as make_tag_attributes,
    query_linked_spans as query_linked_spans,
)
from store.training.tracing.spool import SpanSpool as SpanSpool
from store.training.trainer import Trainer as Trainer
