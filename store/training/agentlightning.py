"""Adapters for the trainer of Agent-lightning 0.3: `agl.Trainer(adapter=TracerTraceToTriplet(), …)`.

An adapter converts spans to training data. These adapters take the same arguments as the adapters of this package, and
return the record types of Agent-lightning. The module needs the extra `agentlightning`.
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false
# Agent-lightning is installed in a separate environment, without the type checker.

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentlightning.adapter import TraceAdapter
from agentlightning.types import Triplet

from store.adapters import messages, triplets
from store.models import Score

__all__ = ["LlmProxyTraceToTriplet", "TraceToMessages", "TracerTraceToTriplet"]


class TracerTraceToTriplet(triplets.TracerTraceToTriplet, TraceAdapter):
    """`store.training.TracerTraceToTriplet` as a subclass of `TraceAdapter` of Agent-lightning."""

    def adapt(self, source: Iterable[Any], /, scores: Iterable[Score] | None = None) -> list[Triplet]:
        """Return the result of `store.training.TracerTraceToTriplet.adapt` as triplets of Agent-lightning."""
        return _converted(super().adapt(source, scores))


class LlmProxyTraceToTriplet(triplets.LlmProxyTraceToTriplet, TraceAdapter):
    """`store.training.LlmProxyTraceToTriplet` as a subclass of `TraceAdapter` of Agent-lightning."""

    def adapt(self, source: Iterable[Any], /, scores: Iterable[Score] | None = None) -> list[Triplet]:
        """Return the result of `store.training.LlmProxyTraceToTriplet.adapt` as triplets of Agent-lightning."""
        return _converted(super().adapt(source, scores))


class TraceToMessages(messages.TraceToMessages, TraceAdapter):
    """`store.training.TraceToMessages` as a subclass of `TraceAdapter` of Agent-lightning."""


def _converted(records: list[triplets.Triplet]) -> list[Triplet]:
    return [Triplet.model_validate(record.model_dump()) for record in records]
