"""Execution of one attempt, from its claim to the report of its status.

The steps are: get the resources, call hooks, open a trace, call the agent, record the reward, store the spans, and
report the status. A rollout is decided elsewhere if another attempt or a user determines its result.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from store.errors import StoreError
from store.interface.store import Store
from store.models import AttemptedRollout, AttemptError, AttemptStatus, NamedResources, ResourcesUpdate, Span
from store.runtime.lenient_json import safe_text, storable_text
from store.training.running.agent import AgentRunner
from store.training.running.agent_threads import AgentThreads, future_of
from store.training.running.claims import Claims
from store.training.running.hooks import HookCalls
from store.training.running.outages import unreachable_part
from store.training.running.outcome import Outcome, Reason
from store.training.running.return_value import record_returned
from store.training.tracing.core_fields import type_name
from store.training.tracing.recorder import WRITE_SECONDS, RecordedSpans
from store.training.tracing.scope import AttemptScope, entered

logger = logging.getLogger("store.training.attempt")

REPORT_SECONDS: Final = 60.0
"""The runner tries at most this many seconds to report a status to a store that cannot be reached."""

INTERRUPTED_SECONDS: Final = 5.0
"""An interrupted attempt waits at most this many seconds until its spans are stored."""

_PAUSE_SECONDS: Final = 0.5
_threads: Final = AgentThreads()
_AT_WORK: Final = ("preparing", "running")

FindResources = Callable[[str | None], Awaitable[ResourcesUpdate | None]]


class Stopped(Exception):
    """The runner stopped the agent: its time limit was reached, or the rollout was cancelled or decided elsewhere."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class AttemptRunner(AgentRunner, Protocol):
    """The part of a runner that one attempt uses."""

    hook_calls: HookCalls
    sync_in_thread: bool
    hooks_before_status: bool
    grace_seconds: float
    ends_in_one_call: bool
    """Whether the last spans, the end of an attempt and the next claim are one call of the store."""

    @property
    def is_draining(self) -> bool:
        """Whether the rollouts of cancelled attempts return to the queue."""
        ...


class AttemptRun:
    """Execution of one attempt by the agent of a runner.

    Args:
        runner: provides the agent, the tracer and the hooks.
        rollout: the claimed rollout.
        resources_of: function that returns the resources with an id, or the latest resources for None.
        claims: the rollouts that the runner may claim at the end of the attempt; None to claim none.
    """

    def __init__(
        self,
        runner: AttemptRunner,
        rollout: AttemptedRollout,
        resources_of: FindResources,
        claims: Claims | None = None,
    ) -> None:
        self._runner = runner
        self._claims = claims
        self.next_rollout: AttemptedRollout | None = None
        """The rollout that was claimed at the end of this attempt; None if none was."""
        self._resources_of = resources_of
        self._rollout = rollout
        self._store = runner.store
        self._loop = asyncio.get_running_loop()
        self._stop_reason: asyncio.Future[Reason] = self._loop.create_future()
        self._began = self._loop.time()
        self._scope: AttemptScope | None = None
        self._is_closed = False
        """Whether all spans of the scope were stored, or read from the store, before the end of the attempt."""
        self._hooks_ran = False
        self._has_returned = False
        self._is_recorded = False
        """Whether the agent's return value is recorded, so that its work must not be repeated."""
        self._resources: NamedResources = {}
        self.outcome = Outcome()

    def stop(self, reason: Reason) -> None:
        """Request the end of the attempt. Any thread may call this."""

        def set_reason() -> None:
            if not self._stop_reason.done():
                self._stop_reason.set_result(reason)

        with suppress(RuntimeError):  # the loop is closed, so the attempt has ended
            self._loop.call_soon_threadsafe(set_reason)

    async def run(self) -> Outcome:
        """Run the attempt, report its status, and return the outcome, with the exception if the agent raised one.

        Raises:
            BaseException: the attempt was interrupted, for example by `CancelledError`, and its status was reported.
        """
        interruption: BaseException | None = None
        # Hooks may set context variables at one call and reset them at another.
        context = contextvars.copy_context()
        try:
            interruption = await self._end_of(asyncio.create_task(self._work(), context=context))
        except Stopped as stopped:
            self.outcome.fail(stopped.reason, TimeoutError(str(stopped)) if stopped.reason == "timeout" else stopped)
        except Exception as error:
            logger.exception("the agent failed on rollout %s", self._rollout.rollout_id)
            self.outcome.fail("error", error)
        except BaseException as error:  # noqa: BLE001 - raised again below
            is_drained = self._runner.is_draining and isinstance(error, asyncio.CancelledError)
            if is_drained and self._is_recorded:
                logger.warning("a hook of rollout %s is cut short, because its runner ends", self._rollout.rollout_id)
            else:
                self.outcome.fail("drained" if is_drained else "interrupted", error)
                interruption = error
        finishing = asyncio.create_task(self._finish(), context=context)
        while not finishing.done():
            try:
                await asyncio.shield(finishing)
            except asyncio.CancelledError as error:
                # Without the report, the attempt would stay open. So a cancellation is raised only after the report.
                interruption = interruption or error
        if interruption is not None:
            raise interruption
        finishing.result()
        return self.outcome

    async def refuse(self) -> None:
        """Report that the attempt was interrupted before it began."""
        self.outcome.fail("drained" if self._runner.is_draining else "interrupted")
        await self._report(0)

    async def _end_of(self, work: asyncio.Task[Exit | None]) -> asyncio.CancelledError | None:
        """Await the work of the attempt, which a cancellation ends.

        If the runner drains and the agent has returned, the work has `grace_seconds` to end by itself. Return a
        cancellation that came too late.
        """
        late: asyncio.CancelledError | None = None
        has_grace, seconds = True, None
        while not work.done():
            try:
                if (await asyncio.wait({work}, timeout=seconds))[0]:
                    break
            except asyncio.CancelledError as error:
                if work.done():
                    late = error
                elif has_grace and self._has_returned and self._runner.is_draining:
                    has_grace, seconds = False, self._runner.grace_seconds
                    continue
            seconds = None
            work.cancel()
        ended = work.result()
        if ended is not None:
            raise ended.error
        return late

    async def _work(self) -> Exit | None:
        runner, rollout = self._runner, self._rollout
        try:
            resources = await self._find_resources()
            if resources is None:
                return None
            self._resources = resources
            self._hooks_ran = True
            await self._call("on_rollout_start")
            tracer = runner.tracer
            self._scope = scope = tracer.open_scope(
                store=self._store,
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
                worker_id=runner.label,
                runner=runner,
            )
            with entered(scope), tracer.root_span(scope) as root:
                self.outcome.error_span_id = f"{root.get_span_context().span_id:016x}"
                await self._call("on_trace_start")
                result = await self._call_agent(resources)
                self._has_returned = True
                await record_returned(result, scope)
                self._is_recorded = True
                await self._call("on_trace_end")
        except (KeyboardInterrupt, SystemExit) as error:
            return Exit(error)
        return None

    async def _find_resources(self) -> NamedResources | None:
        resources_id = self._rollout.resources_id
        update = await self._resources_of(resources_id)
        if update is not None:
            # Other attempts may share these resources, and an agent may change its copy.
            return copy.deepcopy(update.resources)
        if resources_id is None and self._runner.agent.missing_resource(None) is None:
            return {}
        named = "there are none" if resources_id is None else f"there are none of id {resources_id}"
        error = RuntimeError(f"rollout {self._rollout.rollout_id} needs resources, and {named}; publish them first")
        logger.error("%s", error)
        self.outcome.fail("resources", error)
        return None

    async def _call_agent(self, resources: NamedResources) -> Any:
        agent, rollout = self._runner.agent, self._rollout
        trains = rollout.mode == "train"
        if agent.is_async():
            method: Any = agent.training_rollout_async if trains else agent.validation_rollout_async
            work: asyncio.Future[Any] = asyncio.create_task(
                returning_exits(method(rollout.input, resources=resources, rollout=rollout))
            )
        else:
            method = agent.training_rollout if trains else agent.validation_rollout
            if not self._runner.sync_in_thread:
                return method(rollout.input, resources=resources, rollout=rollout)
            call = partial(method, rollout.input, resources=resources, rollout=rollout)
            work = future_of(partial(_call_sync, contextvars.copy_context(), call), _threads.run)
        limit = rollout.config.timeout_seconds
        seconds = None if limit is None else max(self._began + limit - self._loop.time(), 0.0)
        try:
            await asyncio.wait({work, self._stop_reason}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            # The runner is ended on purpose, so an agent that does not stop is logged at level INFO.
            with suppress(asyncio.CancelledError):  # a second cancellation ends only this wait
                await self._stop(work, logging.INFO)
            if not self._runner.is_draining or not work.done() or work.cancelled() or work.exception() is not None:
                raise
            # The agent has finished in spite of the cancellation, so its work must not be repeated.
        if work.cancelled():
            raise RuntimeError("the agent was cancelled by itself, or by a library that it uses")
        if work.done():
            result = work.result()
            if isinstance(result, Exit):
                raise result.error
            return result
        await self._stop(work)
        if self._stop_reason.done():
            reason = self._stop_reason.result()
            raise Stopped(reason, f"the rollout was {'cancelled' if reason == 'cancelled' else 'decided elsewhere'}")
        raise Stopped("timeout", f"the attempt took longer than {rollout.config.timeout_seconds:g} s")

    async def _stop(self, work: asyncio.Future[Any], level: int = logging.WARNING) -> None:
        """Cancel an async agent and wait `grace_seconds`. A sync agent in a thread continues; its result is ignored."""
        if isinstance(work, asyncio.Task):
            work.cancel()
            await asyncio.wait({work}, timeout=self._runner.grace_seconds)
        if not work.done():
            logger.log(level, "the agent of rollout %s does not stop; its result is ignored", self._rollout.rollout_id)
        work.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _finish(self) -> None:
        outcome = self.outcome
        recorded = RecordedSpans([])
        if outcome.reason in {"error", "timeout"} and outcome.error is not None:
            outcome.unreachable = await unreachable_part(outcome.error, self._resources)
            if outcome.unreachable is not None:
                outcome.reason = "infrastructure"
        if outcome.reason == "superseded":
            # The store ends attempts without heartbeats as unresponsive. Storing the last spans sets such an attempt to
            # running again. The report with this status ends the attempt again.
            outcome.status = await self._status_in_store() or outcome.status
        if self._scope is not None:
            recorded = await self._close(self._scope)
        if outcome.reason is None and self._stop_reason.done() and not await self._was_revived():
            # The rollout was cancelled or decided elsewhere while the last spans of the agent were being stored.
            outcome.fail(self._stop_reason.result())
        if outcome.error is not None:
            spans = [*outcome.spans, *recorded.unsent]
            outcome.error_span_id = _span_of(outcome.error, spans) or outcome.error_span_id
        if self._runner.hooks_before_status:
            await self._call_end()
        if not self._ends_in_one_call or not await self._end(recorded):
            await self._end_by_parts(recorded)
        if not self._runner.hooks_before_status:
            await self._call_end()

    async def _close(self, scope: AttemptScope) -> RecordedSpans:
        """Stop recording, and store the spans, except the last ones if they are stored with the end of the attempt."""
        tracer = self._runner.tracer
        recorded: RecordedSpans | None = None
        if self._ends_in_one_call and not self._runner.hooks_before_status:
            recorded = tracer.take_last_spans(scope)
        if recorded is None:
            wait = INTERRUPTED_SECONDS if self.outcome.kind == "interrupted" else None
            recorded = await tracer.close_scope(scope, wait)
            self._is_closed = True
        self._note(recorded)
        return recorded

    async def _end_by_parts(self, recorded: RecordedSpans) -> None:
        """Store the spans that are left, then report the status."""
        if recorded.unsent and self._scope is not None:
            recorded = await self._runner.tracer.keep_last_spans(self._scope, recorded.unsent, None)
            self._note(recorded)
        await self._report(recorded.lost)

    def _note(self, recorded: RecordedSpans) -> None:
        self.outcome.spans = recorded.spans
        if recorded.left:
            self.outcome.fail("spool", RuntimeError(f"{recorded.left} spans could not be stored in time"))

    @property
    def _ends_in_one_call(self) -> bool:
        return self._runner.ends_in_one_call and self.outcome.kind != "interrupted" and not self._stop_reason.done()

    async def _end(self, recorded: RecordedSpans) -> bool:
        """Store the last spans, report the status and claim the next rollout in one call of the store.

        Return False if the call fails. Its parts are then repeated one by one.
        """
        attempt, claims = self._rollout.attempt, self._claims
        claims_next = claims is not None and self.outcome.reason != "infrastructure" and claims.take_next()
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                finished = await self._store.finish_attempt(
                    attempt.rollout_id,
                    attempt.attempt_id,
                    spans=recorded.unsent,
                    number=True,
                    claim_as=self._runner.label if claims_next else None,
                    **self._fields(recorded.lost),
                )
        except Exception as error:  # noqa: BLE001 - storing spans must not cause errors in the runner
            reason = str(error) or f"no answer within {WRITE_SECONDS:g} s"
            logger.warning("the end of attempt %s is reported again: %s", attempt.attempt_id, reason)
            finished = None
        if finished is not None and isinstance(finished.claimed, AttemptedRollout):
            self.next_rollout = finished.claimed
        elif claims_next and claims is not None:
            claims.give_back()
        if finished is None:
            return False
        if isinstance(finished.attempt, StoreError):
            self._log_unreported(finished.attempt)
        if self._scope is not None and not self._is_closed:
            stored = await self._runner.tracer.keep_last_spans(self._scope, recorded.unsent, finished.spans)
            self.outcome.spans = stored.spans
            if stored.left or stored.lost > recorded.lost:
                self._note(stored)
                await self._report(stored.lost)
        return True

    def _fields(self, lost: int) -> dict[str, Any]:
        """Return the arguments with which the end of the attempt is reported."""
        outcome, attempt = self.outcome, self._rollout.attempt
        fields: dict[str, Any] = {"status": outcome.status}
        notes: dict[str, Any] = {} if outcome.reason is None else {"reason": outcome.reason}
        if lost:
            notes["spans_lost"] = lost
        if notes:
            fields["metadata"] = {**(attempt.metadata or {}), **notes}
        if outcome.reason is not None:
            fields["error"] = self._error(outcome)
        return fields

    def _log_unreported(self, error: StoreError) -> None:
        attempt_id, status = self._rollout.attempt.attempt_id, self.outcome.status
        logger.error("attempt %s ended as %s, but could not be reported", attempt_id, status, exc_info=error)

    async def _report(self, lost: int) -> None:
        outcome, attempt = self.outcome, self._rollout.attempt
        fields = self._fields(lost)
        deadline = self._loop.time() + REPORT_SECONDS
        while True:
            try:
                if outcome.reason == "drained":
                    await put_back(self._store, self._rollout, **fields)
                elif outcome.reason != "superseded" or await self._ended_status() is None:
                    await self._store.update_attempt(self._rollout.rollout_id, attempt.attempt_id, **fields)
            except StoreError as error:
                if error.retryable and self._loop.time() < deadline:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    continue
                self._log_unreported(error)
            return

    async def _status_in_store(self) -> AttemptStatus | None:
        """Return the status with which the store or a user ended this attempt.

        Return "unresponsive" if late spans have revived the attempt since then. Return None if the attempt was not
        ended, or if the store cannot be read.
        """
        with suppress(StoreError):
            return await self._ended_status() or ("unresponsive" if await self._was_revived() else None)
        return None

    async def _ended_status(self) -> AttemptStatus | None:
        """Return the status with which the store or a user ended the attempt; None while the attempt is active."""
        for attempt in await self._store.query_attempts(self._rollout.rollout_id):
            if attempt.attempt_id == self._rollout.attempt.attempt_id and attempt.status not in _AT_WORK:
                return attempt.status
        return None

    async def _was_revived(self) -> bool:
        """Return whether late spans revived this attempt after its end, so that it is the active attempt again."""
        if self._stop_reason.result() != "superseded":
            return False
        with suppress(StoreError):
            rollout = await self._store.get_rollout_by_id(self._rollout.rollout_id)
            if isinstance(rollout, AttemptedRollout) and rollout.attempt.attempt_id == self._rollout.attempt.attempt_id:
                return rollout.status in _AT_WORK and rollout.attempt.status in _AT_WORK
        return False

    def _error(self, outcome: Outcome) -> AttemptError:
        error = outcome.error
        if outcome.reason == "drained":
            return AttemptError(type="drained", message="its runner was stopped, and the rollout is in the queue again")
        if error is None or isinstance(error, Stopped):
            return AttemptError(type=str(outcome.reason), message=str(error or ""))
        kind, message = type_name(error), safe_text(error)
        if outcome.unreachable is not None:
            kind, message = "infrastructure", f"{outcome.unreachable}; {kind}: {message}"
        elif outcome.kind == "interrupted" and isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
            # The runner was stopped. The exception is not an error of the agent.
            kind = str(outcome.reason)
        return AttemptError(type=_storable(kind), message=_storable(message), span_id=outcome.error_span_id)

    async def _call(self, name: str, **about: Any) -> None:
        runner, rollout = self._runner, self._rollout
        about |= {"agent": runner.agent, "runner": runner, "tracer": runner.tracer}
        await runner.hook_calls.call(name, rollout=rollout, task=rollout.input, **about)

    async def _call_end(self) -> None:
        if self._hooks_ran:
            outcome = self.outcome
            about = {"spans": outcome.spans, "status": outcome.status, "error": outcome.error}
            await self._call("on_rollout_end", outcome=outcome, **about)


async def put_back(store: Store, rollout: AttemptedRollout, **fields: Any) -> None:
    """End a claimed attempt, and put its rollout back at the end of the queue, in one call of the store.

    Args:
        store: the store.
        rollout: the claimed rollout.
        fields: the arguments of `finish_attempt` with which the attempt ends; the status is `failed`.

    Raises:
        StoreError: the call was refused, or the store cannot be reached.
    """
    finished = await store.finish_attempt(rollout.rollout_id, rollout.attempt.attempt_id, requeue=True, **fields)
    if isinstance(finished.attempt, StoreError):
        raise finished.attempt


class Exit:
    """Wrapper of KeyboardInterrupt or SystemExit. Tasks return it, because raising these would end the event loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def returning_exits(work: Awaitable[Any]) -> Any:
    """Return the result of an awaitable, or `Exit` if it raises an exception that ends the process."""
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        return Exit(error)


def _call_sync(context: contextvars.Context, call: Callable[[], Any]) -> Any:
    """Return the result of an agent's method, or `Exit` if the method raises an exception that ends the process."""
    try:
        return context.run(call)
    except StopIteration as error:
        raise RuntimeError("the agent raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:  # noqa: BLE001 - raised again in the thread of the runner
        return Exit(error)


def _span_of(error: BaseException, spans: list[Span]) -> str | None:
    """Return the id of the first span that ended with the error. The error was raised in this span."""
    kind, message = type_name(error), storable_text(safe_text(error))
    for span in spans:
        for event in span.events:
            attributes = event.attributes
            if attributes.get("exception.type") == kind and attributes.get("exception.message") == message:
                return span.span_id
    return None


def _storable(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode()
