"""Labels and notes of a SQL store."""

from __future__ import annotations

from collections.abc import Sequence

from store.db.queries import annotations as annotation_queries
from store.domain.annotations import AnnotationView
from store.domain.idempotency import Repeat
from store.errors import NotFound
from store.interface.annotations import StoreAnnotations
from store.interface.runs import AsAt
from store.journal.state_view import StateView
from store.models.annotations import AnnotateResult, Annotations
from store.sql.commands import annotations as annotation_commands
from store.sql.core import SQLCore
from store.validation import arguments


class SQLAnnotations(StoreAnnotations):
    """Labels and notes in a SQL database."""

    def __init__(self, core: SQLCore) -> None:
        super().__init__("SQLStore")
        self.core = core

    async def annotate(
        self,
        rollout_id: str,
        note: str | None = None,
        *,
        add_labels: Sequence[str] = (),
        remove_labels: Sequence[str] = (),
    ) -> AnnotateResult:
        command = annotation_commands.annotate(rollout_id, note, add_labels, remove_labels)
        answer: AnnotationView | Repeat = await self.core.call(command)
        if isinstance(answer, Repeat):
            then = await self.query(rollout_id, limit=0, as_at=answer.position)
            return AnnotateResult(labels=then.labels, number=answer.reply["number"])
        return AnnotateResult(labels=answer.labels, number=answer.version)

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
                labels = await annotation_queries.labels_then(session, rollout_id, until)
            return Annotations(labels=labels, notes=await annotation_queries.notes(session, rollout_id, until, limit))

        return await self.core.view(read, as_at, (rollout_id, at), sweeps=False, snapshot=True)
