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
    from store.training.agent import LitAgent, UnsupportedSignature, llm_rollout, prompt_rollout, rollout
    from store.training.algorithm import Algorithm, Dataset, FastAlgorithm, algo, with_llm_proxy, with_store
    from store.training.anthropic_spans import instrument_anthropic
    from store.training.attrs import make_link_attributes, make_tag_attributes, query_linked_spans
    from store.training.baseline import Baseline
    from store.training.continuous import Finished, follow
    from store.training.core_fields import SpanCoreFields
    from store.training.emit import (
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
    from store.training.execution import (
        ClientServerExecutionStrategy,
        ExecutionReport,
        ExecutionStrategy,
        RunnersGone,
        SharedMemoryExecutionStrategy,
    )
    from store.training.failing import AgentFails
    from store.training.fit_report import FitReport
    from store.training.hooks import Hook
    from store.training.openai_spans import instrument_openai
    from store.training.operations import operation
    from store.training.outcome import Outcome
    from store.training.phases import NodeCall, Pipeline, Step
    from store.training.pipeline_runner import PipelineBundle, PipelineRunner
    from store.training.plan import Plan
    from store.training.reward_spans import find_final_reward, find_reward_spans, get_reward_value, is_reward_span
    from store.training.runner import LitAgentRunner, Runner
    from store.training.scope import AttemptScope, current_scope, run_in_scope
    from store.training.spool import SpanSpool
    from store.training.tracer import OtelTracer, Tracer
    from store.training.trainer import Trainer

# The module that defines each name. It is imported when the name is first used.
_LATE = {
    "AdaptReport": "store.adapters.records",
    "Adapter": "store.adapters.base",
    "AgentFails": "store.training.failing",
    "Algorithm": "store.training.algorithm",
    "AttemptScope": "store.training.scope",
    "Backend": "store.llm_proxy",
    "Baseline": "store.training.baseline",
    "ClientServerExecutionStrategy": "store.training.execution",
    "DataProtoFields": "store.adapters.data_proto",
    "Dataset": "store.training.algorithm",
    "Dropped": "store.adapters.records",
    "ExecutionReport": "store.training.execution",
    "ExecutionStrategy": "store.training.execution",
    "FastAlgorithm": "store.training.algorithm",
    "Finished": "store.training.continuous",
    "FitReport": "store.training.fit_report",
    "Hook": "store.training.hooks",
    "LLMProxy": "store.llm_proxy",
    "LeftOut": "store.adapters.rows",
    "LitAgent": "store.training.agent",
    "LitAgentRunner": "store.training.runner",
    "LlmProxyTraceToTriplet": "store.adapters.triplets",
    "Lost": "store.adapters.records",
    "NodeCall": "store.training.phases",
    "OpenAIMessages": "store.adapters.messages",
    "OtelTracer": "store.training.tracer",
    "Outcome": "store.training.outcome",
    "Pipeline": "store.training.phases",
    "PipelineBundle": "store.training.pipeline_runner",
    "PipelineRunner": "store.training.pipeline_runner",
    "Plan": "store.training.plan",
    "ProxySettings": "store.llm_proxy",
    "RewardMatchPolicy": "store.adapters.rewards",
    "Runner": "store.training.runner",
    "RunnersGone": "store.training.execution",
    "SharedMemoryExecutionStrategy": "store.training.execution",
    "SpanCoreFields": "store.training.core_fields",
    "SpanSpool": "store.training.spool",
    "Step": "store.training.phases",
    "TraceAdapter": "store.adapters.base",
    "TraceToMessages": "store.adapters.messages",
    "TraceTree": "store.adapters.tree",
    "Tracer": "store.training.tracer",
    "TracerTraceToTriplet": "store.adapters.triplets",
    "Trainer": "store.training.trainer",
    "Trajectories": "store.adapters.rows",
    "Triplet": "store.adapters.records",
    "UnsupportedSignature": "store.training.agent",
    "algo": "store.training.algorithm",
    "current_scope": "store.training.scope",
    "data_proto_fields": "store.adapters.data_proto",
    "emit_annotation": "store.training.emit",
    "emit_annotation_async": "store.training.emit",
    "emit_exception": "store.training.emit",
    "emit_message": "store.training.emit",
    "emit_object": "store.training.emit",
    "emit_reward": "store.training.emit",
    "emit_reward_async": "store.training.emit",
    "find_final_reward": "store.training.reward_spans",
    "find_reward_spans": "store.training.reward_spans",
    "follow": "store.training.continuous",
    "get_message_value": "store.training.emit",
    "get_object_value": "store.training.emit",
    "get_reward_value": "store.training.reward_spans",
    "instrument_anthropic": "store.training.anthropic_spans",
    "instrument_openai": "store.training.openai_spans",
    "is_reward_span": "store.training.reward_spans",
    "llm_rollout": "store.training.agent",
    "make_link_attributes": "store.training.attrs",
    "make_tag_attributes": "store.training.attrs",
    "operation": "store.training.operations",
    "prompt_rollout": "store.training.agent",
    "query_linked_spans": "store.training.attrs",
    "rollout": "store.training.agent",
    "run_in_scope": "store.training.scope",
    "trajectories": "store.adapters.rows",
    "with_llm_proxy": "store.training.algorithm",
    "with_store": "store.training.algorithm",
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
