"""What a store keeps of what people and programs say about a rollout: labels and notes.

Saying something changes nothing else: neither status nor queue, and no sign of life.
"""
# ruff: noqa: ARG002 - a default that only refuses uses no argument.

from __future__ import annotations

from collections.abc import Sequence

from store.errors import Unsupported
from store.interface.runs import AsAt
from store.models.annotations import AnnotateResult, Annotations
from store.runtime.blocking import Blocking, blocking


class StoreAnnotations:
    """Labels and notes of rollouts. This class is the default of a store without them: its methods raise `Unsupported`.

    A label is up to 64 bytes of text without control characters, and without spaces at its ends; a rollout carries up
    to 64 of them. A note is up to 64 KiB of text. Both are events of the rollout's history, with their actor, and stay
    there when a label is taken off again.

    Args:
        backend: the name of the store's class, for the error.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    async def annotate(
        self,
        rollout_id: str,
        note: str | None = None,
        *,
        add_labels: Sequence[str] = (),
        remove_labels: Sequence[str] = (),
    ) -> AnnotateResult:
        """Put labels on a rollout, take others off it, and make a note of it, all in one event.

        Works whatever the rollout's status, also after its end. Adding a label that is there and removing one that is
        not change nothing; where nothing changes and there is no note, nothing is recorded.

        Args:
            rollout_id: which rollout.
            note: what to say of it.
            add_labels: what to find it by.
            remove_labels: what to find it by no longer.

        Raises:
            NotFound: no such rollout.
            Invalid: a label or a note that is none, the same label to be added and removed, nothing at all, or more
                labels than a rollout carries.
            TooLarge: a longer label or note, or more of them than fit one call.
        """
        raise Unsupported("annotations.annotate", self.backend)

    async def query(
        self, rollout_id: str, *, limit: int = -1, as_at: AsAt | None = None, at: int | None = None
    ) -> Annotations:
        """Return the labels of a rollout, and its notes.

        Args:
            rollout_id: which rollout.
            limit: the last so many notes; -1 for all.
            as_at: as things stood at this moment of the log.
            at: as things stood after this one of the rollout's events.

        Raises:
            NotFound: no such rollout.
        """
        raise Unsupported("annotations.query", self.backend)


class SyncAnnotations(Blocking[StoreAnnotations]):
    """Labels and notes; see `StoreAnnotations`."""

    annotate = blocking(StoreAnnotations.annotate)
    query = blocking(StoreAnnotations.query)
