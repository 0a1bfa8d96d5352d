"""Annotations of rollouts by people and programs: labels, notes and scores.

An annotation changes neither the status of its rollout nor the queue, and is not a sign of life of an attempt.
"""
# ruff: noqa: ARG002 - the default methods only raise and use no arguments.

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from store.errors import Unsupported
from store.interface.runs import AsAt
from store.models.annotations import AnnotateResult, Annotations
from store.models.calls import AnnotateCall, ChangingCall, RecordScoresCall
from store.models.scores import NewScore, RewardVersion, Score
from store.runtime.blocking import Blocking, blocking

T = TypeVar("T")


class StoreAnnotations:
    """Labels, notes and scores of rollouts.

    This base class is used for stores without annotations: its methods raise `Unsupported`.

    A label is a text of at most 64 bytes without control characters, and without spaces at its ends. A rollout has at
    most 64 labels. A note is a text of at most 64 KiB. Every change of the labels and every note is an event in the
    rollout's history. The event contains the actor: the person or program that made the call.

    A score is the value of one version of a reward for one attempt, or the error of the function that should compute
    it. An error may be followed by another error or by a value. A value is final: another value needs a new version.
    Each score is an event in the history of its rollout. It changes neither the status of the rollout nor the reward
    that the agent recorded. `query_rollouts` reads the rewards of a version with `reward_version`.

    Args:
        backend: the name of the store's class, for error messages.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        """Execute a call that adds or removes annotations, given as a value; see `Store.call`."""
        raise Unsupported(call.method, self.backend)

    async def annotate(
        self,
        rollout_id: str,
        note: str | None = None,
        *,
        add_labels: Sequence[str] = (),
        remove_labels: Sequence[str] = (),
        span_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AnnotateResult:
        """Add and remove labels of a rollout, and add a note, all in one event.

        The rollout may have any status, also a final one. Labels to add that the rollout already has, and labels to
        remove that it does not have, are ignored. If no label changes and there is no note, no event is recorded.

        Args:
            rollout_id: the rollout.
            note: the text of the note.
            add_labels: labels to add.
            remove_labels: labels to remove.
            span_id: the span to which the note refers, for example a call of a model or of a tool.
            attempt_id: the attempt of this span; by default the latest attempt with such a span.

        Raises:
            NotFound: the rollout or the span does not exist.
            Invalid: a label or note is malformed, a label is both added and removed, the call contains neither labels
                nor a note, or a span without a note, or the rollout would have more than 64 labels.
            TooLarge: a label or note is too long, or the call contains too many labels.
        """
        return await self.call(AnnotateCall(rollout_id, note, add_labels, remove_labels, span_id, attempt_id))

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

    async def query_labels(self, rollout_ids: Sequence[str], *, as_at: AsAt | None = None) -> dict[str, list[str]]:
        """Return the sorted labels of rollouts, by rollout id. Rollouts without labels are left out.

        Args:
            rollout_ids: at most 1,000 ids. Rollouts that do not exist have no labels.
            as_at: read the state at this moment of the log: the position of an event, or an aware datetime.

        Raises:
            Invalid: there are too many ids.
        """
        raise Unsupported("annotations.query_labels", self.backend)

    async def record_scores(self, scores: Sequence[NewScore]) -> list[int | None]:
        """Record scores of attempts in one commit, all of them or none.

        A score that says the same as the last score of its attempt, name and version records nothing.

        Args:
            scores: up to 10,000 scores of any rollouts.

        Returns:
            For each score the number of its event in the rollout's history; None if nothing was recorded.

        Raises:
            NotFound: a rollout or an attempt does not exist.
            Conflict: an attempt has another value of the same version.
            Invalid: a score has a malformed field, or has neither a value nor an error, or both.
            TooLarge: a text is too long, or there are too many scores or dimensions.
        """
        return await self.call(RecordScoresCall(scores))

    async def query_scores(
        self, rollout_id: str | Sequence[str], *, reward_version: str | None = None, as_at: AsAt | None = None
    ) -> list[Score]:
        """Return the last score of each attempt, name and version, in the order of rollout ids and then of the log.

        Args:
            rollout_id: the id of a rollout, or a list of at most 1,000 ids. Rollouts that do not exist have no scores.
            reward_version: only scores of this version of a reward, such as `helpful@v2`.
            as_at: read the state at this moment of the log: the position of an event, or an aware datetime.

        Raises:
            Invalid: `reward_version` is not of the form `name@version`, or there are too many ids.
        """
        raise Unsupported("annotations.query_scores", self.backend)

    async def query_reward_versions(self, *, as_at: AsAt | None = None) -> list[RewardVersion]:
        """Return the versions of rewards for which the store has scores, sorted by name and version.

        Args:
            as_at: read the state at this moment of the log: the position of an event, or an aware datetime.
        """
        raise Unsupported("annotations.query_reward_versions", self.backend)


class SyncAnnotations(Blocking[StoreAnnotations]):
    """Blocking methods for labels, notes and scores; see `StoreAnnotations`."""

    call = blocking(StoreAnnotations.call)
    annotate = blocking(StoreAnnotations.annotate)
    query = blocking(StoreAnnotations.query)
    record_scores = blocking(StoreAnnotations.record_scores)
    query_labels = blocking(StoreAnnotations.query_labels)
    query_scores = blocking(StoreAnnotations.query_scores)
    query_reward_versions = blocking(StoreAnnotations.query_reward_versions)
