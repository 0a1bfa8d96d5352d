"""Pipelines: a phase graph with an async function per phase.

The events of a run show which phases are completed, so a run can be resumed, and a part of a run can be repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from store.errors import CheckpointMissing, Invalid, StoreError
from store.interface.phase_graphs import graph_of, is_default, publish_default
from store.interface.rerun_requests import limit_silence
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptNode, Fork, Phase, PhaseGraph, Rollout, RunEvent
from store.planning.event_fields import agent_of, message_of, status_of
from store.planning.imported_runs import imported_status
from store.planning.progress import Done, completed, open_phases
from store.planning.scopes import default_scopes, scopes_in_input
from store.training.tracing.scope import current_scope
from store.training.tracing.span_thread import span_thread

__all__ = ["NodeCall", "Pipeline", "Step"]

_HEARTBEAT_SECONDS = 10.0


@dataclass(slots=True)
class NodeCall:
    """One execution of a node: a step of a phase, such as a prompt of a model or a call of a tool.

    The fields are recorded when the node ends; None means the default.
    """

    response: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])
    """Numbers, and `model`; the latency is added unless this dict contains a latency."""
    prompt: str | None = None
    """The prompt of the node; initially the argument of `Step.node`."""
    message: str | None = None
    """A line for people; by default an excerpt of the response or the error."""
    status: str | None = None
    """By default `success`, or `error` if the node raises an exception."""
    service: str | None = None
    """The service that a tool has called; initially the argument of `Step.node`."""
    agent: str | None = None
    """The name of the agent; initially the argument of `Step.node`, by default the node's name in capital letters."""
    node_exec: str | None = None
    """The name of this execution, if the node runs several times; initially the argument of `Step.node`."""
    error: str | None = None
    """By default the exception that the node raises."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further keys of the event."""


@dataclass(slots=True)
class Step:
    """One phase of one scope while the phase runs."""

    store: Store
    rollout: AttemptedRollout
    phase: Phase
    scope: str
    state: dict[str, Any]
    """The state that the phases of the scope share; the function of the phase changes it in place."""
    states: Mapping[str, Mapping[str, Any]]
    """The states by scope, for all scopes that have begun.

    The state of a scope that was already completed is the content of its checkpoints.
    """

    async def append(self, *events: RunEvent) -> list[int]:
        """Append events for this phase and scope, and return their versions."""
        scoped_events = [event.model_copy(update={"phase": self.phase.name, "scope": self.scope}) for event in events]
        return await self.store.runs.append_events(
            self.rollout.rollout_id, self.rollout.attempt.attempt_id, scoped_events
        )

    @asynccontextmanager
    async def node(
        self,
        name: str,
        *,
        prompt: str | None = None,
        under: str | None = None,
        model: str | None = None,
        service: str | None = None,
        agent: str | None = None,
        node_exec: str | None = None,
        message: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[NodeCall]:
        """Record an event at the beginning and an event at the end of a node.

        Both events have a message and an agent, and the first event of a tool has the status `running`. The second
        event also has the latency, the final status, and the error if there is one. The `with` block may change the
        fields of the yielded `NodeCall`, which become fields of the second event.

        Args:
            name: the name of the node.
            prompt: the prompt of the node, or the input of the tool.
            under: the parent node, if the node is a tool.
            model: the model that the node prompts.
            service: the service that the tool calls.
            agent: the name of the agent. None: the name of the node in capital letters.
            node_exec: the name of this execution, if the node runs several times.
            message: the message of the event at the beginning. None: an excerpt of the prompt.
            extra: further keys of the event at the beginning.
        """
        is_tool = under is not None
        call = NodeCall(
            metrics={} if model is None else {"model": model},
            prompt=prompt,
            service=service,
            agent=agent or agent_of(name),
            node_exec=node_exec,
        )
        kind = "tool" if is_tool else "thought"
        start = RunEvent(
            kind=kind,
            node_id=name,
            parent_node_id=under,
            agent=call.agent,
            node_exec=node_exec,
            status=status_of(kind, None),
            service=service,
            metrics=dict(call.metrics) or None,
            message=message or message_of(kind, name, model=model, prompt=prompt),
            prompt=prompt,
        )
        await self.append(start.model_copy(update=dict(extra or {})))
        start_time = time.perf_counter()
        failure: BaseException | None = None
        try:
            yield call
        except BaseException as error:
            failure = error
            raise
        finally:
            # A cancellation is not recorded, because the code that cancels the node already handles the cancellation.
            if not isinstance(failure, asyncio.CancelledError):
                latency = round((time.perf_counter() - start_time) * 1000, 3)
                await self.append(_end_event(name, under, call, latency, failure))


def _end_event(name: str, under: str | None, call: NodeCall, latency: float, failure: BaseException | None) -> RunEvent:
    """Return the event at the end of a node."""
    kind = "result" if under is None else "tool_result"
    error = call.error if failure is None else call.error or f"{type(failure).__name__}: {failure}"
    status = call.status or ("success" if error is None else "error")
    texts: dict[str, Any] = {"response": call.response, "error": error}
    event = RunEvent(
        kind=kind,
        node_id=name,
        parent_node_id=under,
        agent=call.agent,
        node_exec=call.node_exec,
        status=status,
        service=call.service,
        metrics={"latency_ms": latency} | call.metrics,
        message=call.message or message_of(kind, name, status=status, prompt=call.prompt, **texts),
        prompt=call.prompt,
        **texts,
    )
    return event.model_copy(update=call.extra)


PhaseFunction = Callable[[Step], Awaitable[None]]
Function = TypeVar("Function", bound=PhaseFunction)
Scopes = Mapping[str, Sequence[str]]
"""The scopes by kind, for example `{"ticker": ["AAPL"]}`."""
ScopesOf = Callable[[Rollout], Scopes]


class Pipeline:
    """Phases of a graph with their functions.

    `run` runs the phases that are not completed in the attempt's view. The view includes events of earlier attempts on
    which the attempt builds. Therefore the same call serves a first attempt, a re-run that `runs.fork` started, an
    attempt that `runs.resume` started after a crash, and a retry. `execute` calls `run` with the scopes that the run's
    input or events name. A `PipelineRunner` calls `execute`.

    Args:
        graph: the phase graph.
        scopes: function that returns the scopes of a run, by kind of scope, from its rollout. If the list of a kind is
            empty, the phases of that kind do not run. None: the rollout's input is a dict that contains the scopes. For
            example, scopes of the kind `ticker` are under the key `ticker`, `tickers`, `ticker_id` or `ticker_ids`.
    """

    def __init__(self, graph: PhaseGraph, *, scopes: ScopesOf | None = None) -> None:
        self.graph = graph
        self._scopes = scopes
        self._functions: dict[str, PhaseFunction] = {}

    def phase(self, name: str) -> Callable[[Function], Function]:
        """Return a decorator for the function that runs a phase for one scope at a time.

        Raises:
            Invalid: the graph has no such phase.
        """
        if name not in self.graph.by_name:
            raise Invalid("phase", f"{name!r} is not one of {', '.join(self.graph.by_name)}")

        def register(function: Function) -> Function:
            self._functions[name] = function
            return function

        return register

    async def execute(self, store: Store, rollout: AttemptedRollout) -> dict[str, dict[str, Any]]:
        """Call `run` with the scopes that `scopes_of` returns for a run.

        Raises:
            Invalid: the run belongs to another phase graph, or a kind of scope has no scopes.
            CheckpointMissing, ExceptionGroup: see `run`.
        """
        graph = await graph_of(store, rollout)
        if graph is None or (graph.name != self.graph.name and is_default(rollout.resources_id)):
            # No program has chosen a graph for the run, so the run gets the graph of the pipeline that executes the
            # run.
            resources_id = await publish_default(store, self.graph)
            await store.update_rollout(rollout.rollout_id, resources_id=resources_id)
        elif graph.name != self.graph.name:
            raise Invalid(
                "pipeline", f"run {rollout.rollout_id} is of graph {graph.name!r}, not of {self.graph.name!r}"
            )
        number = rollout.attempt.sequence_id
        lineage = await store.runs.list_lineage(rollout.rollout_id)
        fork = next((node.fork for node in lineage if node.sequence_id == number), None)
        scopes = await self.scopes_of(store, rollout, f"attempt:{number}", fork)
        return await self.run(store, rollout, scopes)

    async def scopes_of(
        self, store: Store, rollout: Rollout, view: str, fork: Fork | None = None
    ) -> dict[str, list[str]]:
        """Return the scopes of a run by kind. The run's input names the scopes, or else the run's events.

        If neither the input nor the events of an imported run name a portfolio, the portfolio is the one in
        `imported_runs.DEFAULT_SCOPES`.

        Args:
            store: the store of the run.
            rollout: the run.
            view: the view whose events are read. If the view has no scope of a kind, the events of all attempts are
                read.
            fork: the fork of the attempt. It names the scopes of its phase. None if the attempt is not a fork.

        Raises:
            Invalid: a kind has no scopes.
        """
        input_scopes = self._scopes(rollout) if self._scopes is not None else scopes_in_input(self.graph, rollout.input)
        scopes_by_kind = {kind: list(scopes) for kind, scopes in input_scopes.items()}
        open_kinds = [kind for kind, declared in self.graph.scope_kinds.items() if declared.fixed is None]
        for source in (view, "raw"):
            if all(kind in scopes_by_kind for kind in open_kinds):
                break
            observed = await _scopes_in_events(store, rollout.rollout_id, source, self.graph)
            scopes_by_kind |= {kind: scopes for kind, scopes in observed.items() if kind not in scopes_by_kind}
        scopes_by_kind = default_scopes(self.graph, rollout.metadata) | scopes_by_kind
        if fork is not None and (start := self.graph.by_name.get(fork.phase or "")) is not None:
            scopes_by_kind.setdefault(start.scope_kind, fork.scopes)
        missing = [kind for kind in open_kinds if kind not in scopes_by_kind and self.graph.of_kind(kind)]
        if missing:
            raise Invalid(
                "scopes", f"run {rollout.rollout_id} has no {missing[0]}: neither its input nor its events name one"
            )
        return scopes_by_kind

    async def run(
        self,
        store: Store,
        rollout: AttemptedRollout,
        scopes: Mapping[str, Sequence[str]],
        *,
        state: Mapping[str, Any] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Run the open phases, record events and checkpoints of the phases, and return the state of each scope.

        A phase is open if it is not completed. Kinds of scopes run one after the other, in the order of their
        phases; the scopes of one kind run concurrently. The caller reports the end of the attempt.

        Outside of a runner, this method sends the heartbeats of the attempt during the call. If the run has no
        `unresponsive_seconds`, the method sets 60 s, so that the run fails if this process dies.

        Args:
            store: the store of the run.
            rollout: the run with the attempt to work on.
            scopes: the scopes by kind of scope. If the list of a kind is empty, the phases of that kind do not run. A
                kind with a fixed scope may be omitted.
            state: the initial state of each scope.

        Raises:
            Invalid: a kind of scope has no scopes, or a phase has no function.
            CheckpointMissing: a scope continues at a phase whose required checkpoint does not exist.
            ExceptionGroup: functions of phases raised exceptions. Events and checkpoints that were recorded before are
                kept.
        """
        missing = [name for name in self.graph.by_name if name not in self._functions]
        if missing:
            raise Invalid("phase", f"no function runs {', '.join(missing)}; decorate one with @pipeline.phase(…)")
        kinds = dict.fromkeys(phase.scope_kind for phase in self.graph.phases)
        scopes_by_kind = {kind: self._scopes_of_kind(kind, scopes) for kind in kinds}
        execution = await _Execution.of(self, store, rollout, dict(state or {}))
        for kind, repeated in execution.repeated_scopes().items():
            # A scope of the re-run may be missing in the input, and the re-run hides the events that name the scope.
            scopes_by_kind[kind] = list(dict.fromkeys((*scopes_by_kind.get(kind, ()), *repeated)))
        async with _heartbeats(store, rollout):
            for kind, kind_scopes in scopes_by_kind.items():
                async with asyncio.TaskGroup() as tasks:
                    for scope in kind_scopes:
                        tasks.create_task(execution.scope(kind, scope))
        return execution.states

    def _scopes_of_kind(self, kind: str, scopes: Mapping[str, Sequence[str]]) -> list[str]:
        declared = self.graph.scope_kinds[kind]
        if declared.fixed is not None:
            return [] if kind in scopes and not scopes[kind] else [declared.fixed]
        if kind not in scopes:
            raise Invalid("scopes", f"name the scopes of kind {kind!r}")
        return list(dict.fromkeys(declared.spelled(scope) for scope in scopes[kind]))

    async def run_phase(self, step: Step) -> None:
        """Run the function of a step's phase."""
        await self._functions[step.phase.name](step)


@dataclass(slots=True)
class _Execution:
    """Execution of a pipeline for one attempt."""

    pipeline: Pipeline
    store: Store
    rollout: AttemptedRollout
    initial: dict[str, Any]
    fork: Fork | None
    """The fork of the attempt; None if the attempt is not a fork."""
    done: Done
    """The pairs of scope and phase that the attempt does not have to run, in the form that `open_phases` expects."""
    forks: list[Fork]
    """The forks that the attempt executes, oldest first. The last one is the fork of the attempt itself."""
    kinds: Mapping[str, str]
    """The kind of each scope in the events of all attempts; empty if the attempt is not a resume."""
    states: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @classmethod
    async def of(
        cls, pipeline: Pipeline, store: Store, rollout: AttemptedRollout, initial: dict[str, Any]
    ) -> _Execution:
        lineage = {node.sequence_id: node for node in await store.runs.list_lineage(rollout.rollout_id)}
        node = lineage[rollout.attempt.sequence_id]
        view, graph, fork = f"attempt:{node.sequence_id}", pipeline.graph, node.fork
        rows = (await store.runs.query_events(rollout.rollout_id, view=view, limit=-1, bodies=False)).items
        done_in_attempt = completed(graph, [row for row in rows if row.attempt == node.sequence_id], (), None)
        kinds: dict[str, str] = {}
        if fork is not None and fork.kind != "resume":
            done = done_in_attempt
        else:
            imported = imported_status(rollout.metadata or {}, lineage.values(), node.sequence_id)
            saved = [] if imported is None else await store.runs.list_checkpoints(rollout.rollout_id, view=view)
            done = completed(graph, rows, saved, imported)
        if fork is not None and fork.kind == "resume":
            # The phases of the cascade run again, even if the view contains their ends.
            done = {pair for pair in done if pair[1] not in fork.cascade} | done_in_attempt
            scopes_by_kind = await _scopes_in_events(store, rollout.rollout_id, "raw", graph)
            kinds = {scope: kind for kind, scopes in scopes_by_kind.items() for scope in scopes}
        return cls(pipeline, store, rollout, initial, fork, done, _forks(lineage, node), kinds)

    def repeated_scopes(self) -> dict[str, list[str]]:
        """Return the scopes for which the forks of the attempt repeat phases, by kind."""
        scopes: dict[str, list[str]] = {}
        for fork in self.forks:
            start = self.pipeline.graph.by_name.get(fork.phase or "")
            kinds = self.kinds if start is None else dict.fromkeys(fork.scopes, start.scope_kind)
            for scope in fork.scopes:
                if scope in kinds:
                    scopes.setdefault(kinds[scope], []).append(scope)
        return scopes

    async def scope(self, kind: str, scope: str) -> None:
        """Run the open phases of one scope."""
        # Scopes run concurrently, so each scope gets its own copy of the initial state.
        state = self.states[scope] = deepcopy(self.initial)
        phases = self.pipeline.graph.of_kind(kind)
        pending = open_phases(self.pipeline.graph, self.fork, kind, scope, self.done)
        if not pending:
            for declared in chain.from_iterable(phase.produces for phase in phases):
                state |= await self._saved(declared.name, scope) or {}
            return
        first = pending[0]
        if first.requires is not None:
            saved = await self._saved(first.requires, scope)
            if saved is None:
                raise CheckpointMissing(first.requires, [scope], first.name)
            state |= first.overlay.of(saved)
        for fork in self.forks:
            # A patch applies only at its own phase. Later checkpoints already contain the patch.
            if scope in fork.scopes and first.name == fork.phase:
                state |= fork.state_patch or {}
        for phase in pending:
            await self._phase(Step(self.store, self.rollout, phase, scope, state, self.states))

    async def _saved(self, name: str, scope: str) -> dict[str, Any] | None:
        view = f"attempt:{self.rollout.attempt.sequence_id}"
        snapshot = await self.store.runs.get_checkpoint(self.rollout.rollout_id, scope=scope, name=name, view=view)
        return None if snapshot is None else snapshot.state

    async def _phase(self, step: Step) -> None:
        name = step.phase.name
        cascade = (self.fork is not None and name in self.fork.cascade) or None
        await step.append(RunEvent(kind="phase.started", cascade=cascade))
        await self.pipeline.run_phase(step)
        for declared in step.phase.produces:
            # The checkpoint is saved now, because later phases change the state.
            await self.store.runs.save_checkpoint(
                self.rollout.rollout_id,
                self.rollout.attempt.attempt_id,
                scope=step.scope,
                name=declared.name,
                state=step.state,
                after_phase=name,
                graph=self.pipeline.graph,
            )
        await step.append(RunEvent(kind="phase.completed", cascade=cascade))


def _forks(lineage: Mapping[int, AttemptNode], node: AttemptNode) -> list[Fork]:
    """Return the forks that an attempt executes, oldest first.

    An attempt that resumes another attempt also continues the fork of that attempt.
    """
    forks: list[Fork] = []
    fork = node.fork
    while fork is not None:
        forks.append(fork)
        fork = lineage[fork.base].fork if fork.kind == "resume" else None
    return forks[::-1]


@asynccontextmanager
async def _heartbeats(store: Store, rollout: AttemptedRollout) -> AsyncGenerator[None]:
    """Send heartbeats of an attempt during the `with` block, in a thread that the phases cannot block.

    Do nothing if a runner executes the attempt.
    """
    if current_scope() is not None:
        # The runner already sends the heartbeats of the attempt.
        yield
        return
    await limit_silence(store, rollout)

    async def beat() -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            with suppress(StoreError):
                await store.update_attempt(
                    rollout.rollout_id, rollout.attempt.attempt_id, last_heartbeat_time=time.time()
                )

    heartbeats = asyncio.wrap_future(span_thread().submit(beat()))
    try:
        yield
    finally:
        heartbeats.cancel()
        await asyncio.gather(heartbeats, return_exceptions=True)


async def _scopes_in_events(store: Store, run_id: str, view: str, graph: PhaseGraph) -> dict[str, list[str]]:
    """Return the scopes of each kind in a view, in the order of their first events."""
    page = await store.runs.query_events(run_id, view=view, limit=-1, bodies=False)
    scopes: dict[str, dict[str, None]] = {}
    for event in page.items:
        phases = graph.phases_of(event.node_id) if event.node_id is not None else []
        phase = phases[0] if len(phases) == 1 else graph.by_name.get(event.phase or "")
        if phase is not None and event.scope is not None:
            scopes.setdefault(phase.scope_kind, {})[event.scope] = None
    return {kind: list(names) for kind, names in scopes.items()}
