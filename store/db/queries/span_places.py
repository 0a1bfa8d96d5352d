"""The place of a span among the spans of its attempt."""

from __future__ import annotations

from sqlalchemy import bindparam, func, select
from sqlalchemy.types import BigInteger, Text

from store.db.dialect import ReadSession
from store.db.tables.core import spans

_BEFORE = select(func.count()).where(
    spans.c.rollout_id == bindparam("rollout_id", type_=Text),
    spans.c.attempt_id == bindparam("attempt_id", type_=Text),
    spans.c.sequence_id < bindparam("sequence_id", type_=BigInteger),
)


async def spans_before(session: ReadSession, rollout_id: str, attempt_id: str, sequence_id: int) -> int:
    """Return the number of spans of an attempt with a smaller number than `sequence_id`."""
    names = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": sequence_id}
    ((count,),) = await session.fetch(session.dialect.prepared(_BEFORE), names)
    return count
