"""Means of rewards in which ended rollouts without a reward count as a value, or are left out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from store.db.dialect import ReadSession
from store.db.queries.counted_rewards import counted_figures, counted_reward
from store.db.tables import core as core_tables
from store.errors import Invalid
from store.models import RolloutStatus
from store.models.missing_rewards import MissingReward, RewardShare
from store.sql.store import SQLStore
from tests.dashboard.page_helpers import ON_BOTH
from tests.dashboard.traces import member

CHOICES = ["out", "failed:0", "failed:-1.5", "ended:0.25"]
FATES: list[tuple[float | None, RolloutStatus]] = [
    (0.5, "succeeded"),
    (0.25, "failed"),
    (None, "failed"),
    (None, "succeeded"),
    (1.0, "cancelled"),
    (None, "cancelled"),
    (0.125, "running"),
    (None, "running"),
]


async def _figures(session: ReadSession, missing: MissingReward) -> Any:
    sql = select(*[column.label(name) for name, column in counted_figures(missing).items()])
    (figures,) = await session.fetch(session.dialect.sql(sql.select_from(core_tables.rollouts)), {})
    rollout = core_tables.rollouts.c
    sql = select(rollout.status, rollout.last_reward, counted_reward(missing).label("counted"))
    return figures, await session.fetch(session.dialect.sql(sql), {})


@ON_BOTH
async def test_sql_counts_each_rollout_as_the_choice_says(store: SQLStore) -> None:
    for reward, status in FATES:
        await member(store, "g", reward, status=status)
    for text in CHOICES:
        missing = MissingReward.parse(text)
        figures, rows = await store.core.look(partial(_figures, missing=missing))
        values = [missing.counted(row.status, row.last_reward) for row in rows]
        assert [row.counted for row in rows] == values
        assert (figures.ended, figures.rewarded_ended) == (6, 3)
        counted = [value for value in values if value is not None]
        assert (figures.counted, figures.mean_counted) == (len(counted), pytest.approx(np.mean(counted)))


def test_choice_reads_as_the_text_that_it_writes() -> None:
    for text in CHOICES:
        assert MissingReward.parse(str(MissingReward.parse(text))) == MissingReward.parse(text)
    assert MissingReward.parse("") == MissingReward.parse("failed") == MissingReward("failed", 0.0)
    assert MissingReward().param is None
    assert MissingReward.parse("ended:-1").param == "ended:-1"


@pytest.mark.parametrize("text", ["0", "out:0", "failed:", "failed:nan", "failed:1e400", "lost:0", "failed:much"])
def test_choice_of_another_form_is_refused_or_is_zero(text: str) -> None:
    if text == "failed:":
        assert MissingReward.parse(text) == MissingReward()
        return
    with pytest.raises(Invalid, match="unrewarded"):
        MissingReward.parse(text)


def test_shares_that_differ_by_some_points_are_apart() -> None:
    assert RewardShare(64, 72).is_apart(RewardShare(70, 72))
    assert not RewardShare(64, 72).is_apart(RewardShare(66, 72))
    assert not RewardShare(0, 0).is_apart(RewardShare(3, 9))
    assert str(RewardShare(1200, 1300)) == "1,200 of 1,300 rewarded"
