"""Labels, notes and scores of a SQL store. Decision 113."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from store.db.queries import annotations as annotation_queries
from store.db.queries import scores as score_queries
from store.domain.annotations import AnnotationView
from store.domain.idempotency import Repeat
from store.errors import NotFound
from store.interface.annotations import StoreAnnotations
from store.interface.runs import AsAt
from store.journal.state_view import StateView
from store.models.annotations import AnnotateResult, Annotations
from store.models.calls import AnnotateCall, ChangingCall, RecordScoresCall
from store.models.scores import RewardVersion, Score
from store.sql.calls import CommandCall
from store.sql.commands import annotations as annotation_commands
from store.sql.commands import scores as score_commands
from store.sql.core import SQLCore
from store.validation import arguments, scores
from store.validation.annotations import check

T = TypeVar("T")


class SQLAnnotations(StoreAnnotations):
    """Labels, notes and scores in a SQL database."""

    def __init__(self, core: SQLCore) -> None:
        super().__init__("SQLStore")
        self.core = core

    def call(self, call: ChangingCall[T]) -> Coroutine[Any, Any, T]:
        return CALLS[type(call)](self, call)

    async def query(
        self, rollout_id: str, *, limit: int = -1, as_at: AsAt | None = None, at: int | None = None
    ) -> Annotations:
        arguments.text(rollout_id, "rollout_id")
        arguments.part_of_history(0, limit)

        async def read(view: StateView) -> Annotations:
            session, until = view.session, view.position
            life = await annotation_queries.life(session, rollout_id)
            if life is None or life[0] > until:
                raise NotFound.rollout(rollout_id)
            if life[1] <= until:
                labels = await annotation_queries.labels(session, rollout_id)
            else:
                past = await annotation_queries.labels_then(session, [rollout_id], until)
                labels = past.get(rollout_id, [])
            return Annotations(labels=labels, notes=await annotation_queries.notes(session, rollout_id, until, limit))

        return await self.core.view(read, as_at, (rollout_id, at), sweeps=False, snapshot=True)

    async def query_labels(self, rollout_ids: Sequence[str], *, as_at: AsAt | None = None) -> dict[str, list[str]]:
        ids = scores.rollout_ids(rollout_ids)
        return await self.core.view(
            lambda view: annotation_queries.labels_of(view.session, rollout_ids=ids, until=view.until),
            as_at,
            sweeps=False,
        )

    async def query_scores(
        self, rollout_id: str | Sequence[str], *, reward_version: str | None = None, as_at: AsAt | None = None
    ) -> list[Score]:
        ids = scores.rollout_ids(rollout_id)
        version = None if reward_version is None else scores.version_key(reward_version)
        return await self.core.view(
            lambda view: score_queries.scores(view.session, ids, version, view.until), as_at, sweeps=False
        )

    async def query_reward_versions(self, *, as_at: AsAt | None = None) -> list[RewardVersion]:
        return await self.core.view(lambda view: score_queries.versions(view.session, view.until), as_at, sweeps=False)


async def _annotate(annotations: SQLAnnotations, call: AnnotateCall) -> AnnotateResult:
    if call.span_id is not None:
        check(call)
        attempts = await annotations.core.look(
            partial(annotation_queries.attempts_of_span, rollout_id=call.rollout_id, span_id=call.span_id)
        )
        if not attempts or call.attempt_id not in {None, *attempts}:
            place = "" if call.attempt_id is None else f"attempt {call.attempt_id} of "
            raise NotFound("span", call.span_id, f"Span {call.span_id} not found for {place}rollout {call.rollout_id}")
        call = replace(call, attempt_id=call.attempt_id or attempts[-1])
    answer: AnnotationView | Repeat = await annotations.core.call(annotation_commands.annotate(call))
    if isinstance(answer, Repeat):
        then = await annotations.query(call.rollout_id, limit=0, as_at=answer.position)
        return AnnotateResult(labels=then.labels, number=answer.reply["number"])
    return AnnotateResult(labels=answer.labels, number=answer.version)


CALLS: Final[dict[type[ChangingCall[Any]], Callable[[SQLAnnotations, Any], Coroutine[Any, Any, Any]]]] = {
    AnnotateCall: _annotate,
    RecordScoresCall: CommandCall(score_commands.record, list[int | None], sweeps=False),
}
"""The functions that execute the calls of annotations, by the type of the call."""
