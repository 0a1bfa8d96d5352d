"""Adapters for Agent-lightning 0.3's own trainer: `agl.Trainer(adapter=TracerTraceToTriplet(), …)`.

They are this package's adapters, with the same arguments, and return Agent-lightning's records. They need the extra
`agentlightning`.
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

__all__ = ["LlmProxyTraceToTriplet", "TraceToMessages", "TracerTraceToTriplet"]


class TracerTraceToTriplet(triplets.TracerTraceToTriplet, TraceAdapter):
    """`store.training.TracerTraceToTriplet`, of Agent-lightning's type."""

    def adapt(self, source: Iterable[Any], /) -> list[Triplet]:
        """Return the triplets as Agent-lightning's; otherwise as `store.training.TracerTraceToTriplet.adapt`."""
        return _theirs(super().adapt(source))


class LlmProxyTraceToTriplet(triplets.LlmProxyTraceToTriplet, TraceAdapter):
    """`store.training.LlmProxyTraceToTriplet`, of Agent-lightning's type."""

    def adapt(self, source: Iterable[Any], /) -> list[Triplet]:
        """Return the triplets as Agent-lightning's; otherwise as `store.training.LlmProxyTraceToTriplet.adapt`."""
        return _theirs(super().adapt(source))


class TraceToMessages(messages.TraceToMessages, TraceAdapter):
    """`store.training.TraceToMessages`, of Agent-lightning's type."""


def _theirs(made: list[triplets.Triplet]) -> list[Triplet]:
    return [Triplet.model_validate(each.model_dump()) for each in made]
