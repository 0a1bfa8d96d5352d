"""Public names of the training package, such as `Trainer`, `Runner` and `emit_reward`.

The names are compatible with Agent-lightning, another framework for the training of agents. Importing the package
starts nothing; the module of each name is imported when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store.adapters.base import Adapter, TraceAdapter
    from store.adapters.data_proto import DataProtoFields, data_proto_fields
    from store.adapters.messages import OpenAIMessages, TraceToMessages
    from store.adapters.records import AdaptReport, Dropped, Lost, Triplet
    from store.adapters.rewards import RewardMatchPolicy
    from store.adapters.rows import LeftOut, Trajectories, trajectories
    from store.adapters.tree import TraceTree
    from store.adapters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet
    from store.llm_proxy import Backend, LLMProxy, ProxySettings
    from store.pipelines.phases import NodeCall, Pipeline, Step
    from store.pipelines.pipeline_runner import PipelineBundle, PipelineRunner
    from store.training.algorithms.algorithm import Algorithm, Dataset, FastAlgorithm, algo, with_llm_proxy, with_store
    from store.training.algorithms.baseline import Baseline
    from store.training.algorithms.fit_report import FitReport
    from store.training.algorithms.plan import Plan
    from store.training.algorithms.rollout_ends import Finished, follow
    from store.training.execution import (
        ClientServerExecutionStrategy,
        ExecutionReport,
        ExecutionStrategy,
        RunnersGone,
        SharedMemoryExecutionStrategy,
    )
    from store.training.model_clients.anthropic_spans import instrument_anthropic
    from store.training.model_clients.openai_spans import instrument_openai
    from store.training.running.agent import LitAgent, UnsupportedSignature, llm_rollout, prompt_rollout, rollout
    from store.training.running.early_failure import AgentFails
    from store.training.running.hooks import Hook
    from store.training.running.outcome import Outcome
    from store.training.running.runner import LitAgentRunner, Runner
    from store.training.tracer import OtelTracer, Tracer
    from store.training.tracing.core_fields import SpanCoreFields
    from store.training.tracing.emitters import (
        emit_annotation,
        emit_annotation_async,
        emit_exception,
        emit_message,
        emit_object,
        emit_reward,
        emit_reward_async,
        get_message_value,
        get_object_value,
    )
    from store.training.tracing.operations import operation
    from store.training.tracing.reward_spans import (
        find_final_reward,
        find_reward_spans,
        get_reward_value,
        is_reward_span,
    )
    from store.training.tracing.scope import AttemptScope, current_scope, run_in_scope
    from store.training.tracing.span_attributes import make_link_attributes, make_tag_attributes, query_linked_spans
    from store.training.tracing.spool import SpanSpool
    from store.training.trainer import Trainer

# The module that defines each name. It is imported when the name is first used.
_LATE = {
    "AdaptReport": "store.adapters.records",
    "Adapter": "store.adapters.base",
    "AgentFails": "store.training.running.early_failure",
    "Algorithm": "store.training.algorithms.algorithm",
    "AttemptScope": "store.training.tracing.scope",
    "Backend": "store.llm_proxy",
    "Baseline": "store.training.algorithms.baseline",
    "ClientServerExecutionStrategy": "store.training.execution",
    "DataProtoFields": "store.adapters.data_proto",
    "Dataset": "store.training.algorithms.algorithm",
    "Dropped": "store.adapters.records",
    "ExecutionReport": "store.training.execution",
    "ExecutionStrategy": "store.training.execution",
    "FastAlgorithm": "store.training.algorithms.algorithm",
    "Finished": "store.training.algorithms.rollout_ends",
    "FitReport": "store.training.algorithms.fit_report",
    "Hook": "store.training.running.hooks",
    "LLMProxy": "store.llm_proxy",
    "LeftOut": "store.adapters.rows",
    "LitAgent": "store.training.running.agent",
    "LitAgentRunner": "store.training.running.runner",
    "LlmProxyTraceToTriplet": "store.adapters.triplets",
    "Lost": "store.adapters.records",
    "NodeCall": "store.pipelines.phases",
    "OpenAIMessages": "store.adapters.messages",
    "OtelTracer": "store.training.tracer",
    "Outcome": "store.training.running.outcome",
    "Pipeline": "store.pipelines.phases",
    "PipelineBundle": "store.pipelines.pipeline_runner",
    "PipelineRunner": "store.pipelines.pipeline_runner",
    "Plan": "store.training.algorithms.plan",
    "ProxySettings": "store.llm_proxy",
    "RewardMatchPolicy": "store.adapters.rewards",
    "Runner": "store.training.running.runner",
    "RunnersGone": "store.training.execution",
    "SharedMemoryExecutionStrategy": "store.training.execution",
    "SpanCoreFields": "store.training.tracing.core_fields",
    "SpanSpool": "store.training.tracing.spool",
    "Step": "store.pipelines.phases",
    "TraceAdapter": "store.adapters.base",
    "TraceToMessages": "store.adapters.messages",
    "TraceTree": "store.adapters.tree",
    "Tracer": "store.training.tracer",
    "TracerTraceToTriplet": "store.adapters.triplets",
    "Trainer": "store.training.trainer",
    "Trajectories": "store.adapters.rows",
    "Triplet": "store.adapters.records",
    "UnsupportedSignature": "store.training.running.agent",
    "algo": "store.training.algorithms.algorithm",
    "current_scope": "store.training.tracing.scope",
    "data_proto_fields": "store.adapters.data_proto",
    "emit_annotation": "store.training.tracing.emitters",
    "emit_annotation_async": "store.training.tracing.emitters",
    "emit_exception": "store.training.tracing.emitters",
    "emit_message": "store.training.tracing.emitters",
    "emit_object": "store.training.tracing.emitters",
    "emit_reward": "store.training.tracing.emitters",
    "emit_reward_async": "store.training.tracing.emitters",
    "find_final_reward": "store.training.tracing.reward_spans",
    "find_reward_spans": "store.training.tracing.reward_spans",
    "follow": "store.training.algorithms.rollout_ends",
    "get_message_value": "store.training.tracing.emitters",
    "get_object_value": "store.training.tracing.emitters",
    "get_reward_value": "store.training.tracing.reward_spans",
    "instrument_anthropic": "store.training.model_clients.anthropic_spans",
    "instrument_openai": "store.training.model_clients.openai_spans",
    "is_reward_span": "store.training.tracing.reward_spans",
    "llm_rollout": "store.training.running.agent",
    "make_link_attributes": "store.training.tracing.span_attributes",
    "make_tag_attributes": "store.training.tracing.span_attributes",
    "operation": "store.training.tracing.operations",
    "prompt_rollout": "store.training.running.agent",
    "query_linked_spans": "store.training.tracing.span_attributes",
    "rollout": "store.training.running.agent",
    "run_in_scope": "store.training.tracing.scope",
    "trajectories": "store.adapters.rows",
    "with_llm_proxy": "store.training.algorithms.algorithm",
    "with_store": "store.training.algorithms.algorithm",
}

__all__ = [
    "AdaptReport",
    "Adapter",
    "AgentFails",
    "Algorithm",
    "AttemptScope",
    "Backend",
    "Baseline",
    "ClientServerExecutionStrategy",
    "DataProtoFields",
    "Dataset",
    "Dropped",
    "ExecutionReport",
    "ExecutionStrategy",
    "FastAlgorithm",
    "Finished",
    "FitReport",
    "Hook",
    "LLMProxy",
    "LeftOut",
    "LitAgent",
    "LitAgentRunner",
    "LlmProxyTraceToTriplet",
    "Lost",
    "NodeCall",
    "OpenAIMessages",
    "OtelTracer",
    "Outcome",
    "Pipeline",
    "PipelineBundle",
    "PipelineRunner",
    "Plan",
    "ProxySettings",
    "RewardMatchPolicy",
    "Runner",
    "RunnersGone",
    "SharedMemoryExecutionStrategy",
    "SpanCoreFields",
    "SpanSpool",
    "Step",
    "TraceAdapter",
    "TraceToMessages",
    "TraceTree",
    "Tracer",
    "TracerTraceToTriplet",
    "Trainer",
    "Trajectories",
    "Triplet",
    "UnsupportedSignature",
    "algo",
    "current_scope",
    "data_proto_fields",
    "emit_annotation",
    "emit_annotation_async",
    "emit_exception",
    "emit_message",
    "emit_object",
    "emit_reward",
    "emit_reward_async",
    "find_final_reward",
    "find_reward_spans",
    "follow",
    "get_message_value",
    "get_object_value",
    "get_reward_value",
    "instrument_anthropic",
    "instrument_openai",
    "is_reward_span",
    "llm_rollout",
    "make_link_attributes",
    "make_tag_attributes",
    "operation",
    "prompt_rollout",
    "query_linked_spans",
    "rollout",
    "run_in_scope",
    "trajectories",
    "with_llm_proxy",
    "with_store",
]

# With this function, a type checker would accept any name, so the function is hidden from type checkers.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_LATE[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
