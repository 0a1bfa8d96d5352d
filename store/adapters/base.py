"""Base classes of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from store.models import Span

S_contra = TypeVar("S_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Adapter(Generic[S_contra, R_co]):
    """Base class of adapters: pure functions that convert one form of data to another. Subclasses override `adapt`."""

    def __call__(self, source: S_contra, /) -> R_co:
        """Return what `adapt` returns."""
        return self.adapt(source)

    def adapt(self, source: S_contra, /) -> R_co:
        """Return the converted data."""
        raise NotImplementedError(f"{type(self).__name__} does not override adapt")


class TraceAdapter(Adapter[Sequence[Span], R_co], Generic[R_co]):
    """Base class of adapters for `Trainer(adapter=…)`. They convert the spans of an attempt to training data."""
