"""Statements are compiled once, whatever their values are."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, bindparam, select
from sqlalchemy.types import Text

from store import open_store
from store.db.tables.core import rollouts
from store.sql.store import SQLStore


def _of_status(status: str) -> Select[Any]:
    column = rollouts.c.rollout_id
    return select(column).where(rollouts.c.status == status, column == bindparam("rollout", type_=Text)).limit(3)


async def test_statements_that_differ_in_values_share_their_text_and_keep_their_values() -> None:
    async with await open_store("memory://") as store:
        assert isinstance(store, SQLStore)
        dialect = store.core.dialect
        first, second = dialect.sql(_of_status("running")), dialect.sql(_of_status("failed"))
        assert second.text is first.text
        assert (first.args({"rollout": "a"}), second.args({"rollout": "b"})) == (
            ("running", "a", 3, 0),
            ("failed", "b", 3, 0),
        )
        assert dialect.sql(_of_status("failed").limit(None)).text != first.text
