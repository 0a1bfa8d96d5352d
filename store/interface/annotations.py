"""Annotations of rollouts by people and programs: labels and notes.

An annotation changes neither the status of its rollout nor the queue, and is not a sign of life of an attempt.
"""
# ruff: noqa: ARG002 - the default methods only raise and use no arguments.

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from store.errors import Unsupported
from store.interface.runs import AsAt
from store.models.annotations import AnnotateResult, Annotations
from store.models.calls import AnnotateCall, ChangingCall
from store.runtime.blocking import Blocking, blocking

T = TypeVar("T")


class StoreAnnotations:
    """Labels and notes of rollouts.

    This base class is used for stores without annotations: its methods raise `Unsupported`.

    A label is a text of at most 64 bytes without control characters, and without spaces at its ends. A rollout has at
    most 64 labels. A note is a text of at most 64 KiB. Every change of the labels and every note is an event in the
    rollout's history. The event contains the actor: the person or program that made the call.

    Args:
        backend: the name of the store's class, for error messages.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        """Execute a call that changes labels or notes, given as a value; see `Store.call`."""
        raise Unsupported(call.method, self.backend)

    async def annotate(
        self,
        rollout_id: str,
        note: str | None = None,
        *,
        add_labels: Sequence[str] = (),
        remove_labels: Sequence[str] = (),
    ) -> AnnotateResult:
        """Add and remove labels of a rollout, and add a note, all in one event.

        The rollout may have any status, also a final one. Labels to add that the rollout already has, and labels to
        remove that it does not have, are ignored. If no label changes and there is no note, no event is recorded.

        Args:
            rollout_id: the rollout.
            note: the text of the note.
            add_labels: labels to add.
            remove_labels: labels to remove.

        Raises:
            NotFound: the rollout does not exist.
            Invalid: a label or note is malformed, a label is both added and removed, the call contains neither labels
                nor a note, or the rollout would have more than 64 labels.
            TooLarge: a label or note is too long, or the call contains too many labels.
        """
        return await self.call(AnnotateCall(rollout_id, note, add_labels, remove_labels))

    async def query(
        self, rollout_id: str, *, limit: int = -1, as_at: AsAt | None = None, at: int | None = None
    ) -> Annotations:
        """Return the labels and notes of a rollout.

        Args:
            rollout_id: the rollout.
            limit: the maximum number of notes, of which the latest are returned; -1 for all.
            as_at: read the state at this moment of the log: the position of an event, or an aware datetime.
            at: read the state after the rollout's event with this number.

        Raises:
            NotFound: the rollout does not exist.
        """
        raise Unsupported("annotations.query", self.backend)


class SyncAnnotations(Blocking[StoreAnnotations]):
    """Blocking methods for labels and notes; see `StoreAnnotations`."""

    call = blocking(StoreAnnotations.call)
    annotate = blocking(StoreAnnotations.annotate)
    query = blocking(StoreAnnotations.query)
