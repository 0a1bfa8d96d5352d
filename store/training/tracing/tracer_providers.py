"""Tracer providers of OpenTelemetry, and the ids of the spans that are recorded.

OpenTelemetry takes ids from the module `random`. An agent that seeds this module would get equal ids for different
spans, and the ids would change the random numbers of the agent. So the ids of recorded spans come from the system.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.trace import Span, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanContext

from store.otel.repair import id_change
from store.semconv import CHANGED

# By default the SDK keeps only 128 attributes of a span. A prompt of fifty messages has more, so the limit is removed.
_NO_LIMIT: Final = SpanLimits.UNSET


# A system call takes ten times as long as taking an id from a list, so many ids are read at once.
_IDS_AT_ONCE: Final = 128
_span_ids: Final[list[int]] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_span_ids.clear)


class SystemIds(IdGenerator):
    """Generator of random ids that do not depend on the seed of the module `random`."""

    def generate_span_id(self) -> int:
        """Return the id of a span: 64 random bits, not all zero."""
        try:
            return _span_ids.pop()
        except IndexError:
            _span_ids.extend(filter(None, struct.unpack(f"{_IDS_AT_ONCE}Q", os.urandom(8 * _IDS_AT_ONCE))))
            return int.from_bytes(os.urandom(8)) or 1

    def generate_trace_id(self) -> int:
        """Return the id of a trace: 128 random bits, not all zero."""
        return int.from_bytes(os.urandom(16)) or 1

    def is_trace_id_random(self) -> bool:
        """Return True: every bit of a trace id is random."""
        return True


def new_provider() -> TracerProvider:
    """Return a provider that records all spans with all their attributes."""
    return TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False, span_limits=_unlimited(), id_generator=SystemIds())


def global_provider() -> TracerProvider:
    """Return the global provider of this process. If the process has no provider, create the provider.

    Raises:
        RuntimeError: the process has a provider that accepts no processors.
    """
    installed = trace.get_tracer_provider()
    if isinstance(installed, trace.ProxyTracerProvider):
        trace.set_tracer_provider(new_provider())
        installed = trace.get_tracer_provider()
    if not isinstance(installed, TracerProvider):
        raise RuntimeError(f"{type(installed).__name__} accepts no processors; install the SDK's TracerProvider")  # noqa: TRY004
    return installed


def use_system_ids(provider: TracerProvider) -> bool:
    """Take the ids of a provider's future spans from the system, unless the provider has a custom id generator.

    Return whether the ids come from the system.
    """
    generator: Any = provider.id_generator
    if type(generator) is RandomIdGenerator:
        # Tracers that exist already use this object, too.
        system = SystemIds()
        generator.generate_span_id = system.generate_span_id
        generator.generate_trace_id = system.generate_trace_id
        return True
    return isinstance(generator, SystemIds)


def recording_tracer(provider: TracerProvider, name: str) -> trace.Tracer:
    """Return a tracer whose spans keep all their attributes, even if the provider limits the attributes of spans."""
    tracer: Any = provider.get_tracer(name)
    if hasattr(tracer, "_span_limits"):  # a disabled provider returns another class
        tracer._span_limits = _unlimited()  # noqa: SLF001 - the SDK has no public way
    return tracer


def change_id(span: Span) -> int:
    """Replace the id of a starting span, because another span has this id. Add a mark, and return the new id."""
    context = span.get_span_context()
    new_id = SystemIds().generate_span_id()
    changed: Any = span
    changed._context = SpanContext(  # noqa: SLF001 - nothing has read the id of a span that begins
        context.trace_id, new_id, context.is_remote, context.trace_flags, context.trace_state
    )
    span.set_attribute(CHANGED, [id_change(f"{context.span_id:016x}")])
    return new_id


def _unlimited() -> SpanLimits:
    return SpanLimits(
        max_attributes=_NO_LIMIT,
        max_events=_NO_LIMIT,
        max_links=_NO_LIMIT,
        max_span_attributes=_NO_LIMIT,
        max_event_attributes=_NO_LIMIT,
        max_link_attributes=_NO_LIMIT,
        max_attribute_length=_NO_LIMIT,
        max_span_attribute_length=_NO_LIMIT,
    )
