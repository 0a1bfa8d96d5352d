"""Check of the table `watch`: the time of the next check of each rollout with a time limit. Decision 50.

The times follow from the log and from heartbeats, which are stored outside the log. The watchdog ends attempts that
have exceeded a time limit. If the time in a row is too late, the watchdog ends the attempt too late. If the row is
missing, the watchdog never ends the attempt.
"""

from collections.abc import Mapping
from typing import NamedTuple

from store.db.dialect import ReadSession
from store.db.queries import scan
from store.db.tables import core as core_tables
from store.domain import retry
from store.domain.rollout import RolloutState
from store.verification.fold import is_watched


class WrongCheck(NamedTuple):
    """A wrong time of a rollout's next check. Times are microseconds since the epoch."""

    rollout_id: str
    expected: int | None
    """The latest correct time; None if the rollout has no time limit, and so must have no row."""
    actual: int | None
    """The time in the table; None if there is no row."""


async def wrong_checks(session: ReadSession, states: Mapping[str, RolloutState]) -> list[WrongCheck]:
    """Return the wrong times of the next checks of some rollouts.

    The heartbeats of the rollouts are added to the given states.

    Args:
        session: a session that reads all tables at the same moment.
        states: the states that follow from the log, by rollout id.
    """
    ids = list(states)
    watch, signals = core_tables.watch.c.rollout_id, core_tables.attempt_signals.c.rollout_id
    stored: dict[str, int] = {row.rollout_id: row.check_at for row in await scan.rows_with(session, watch, ids)}
    beats = {(row.rollout_id, row.attempt_id): row for row in await scan.rows_with(session, signals, ids)}
    wrong: list[WrongCheck] = []
    for key, state in states.items():
        latest = state.latest
        beat = None if latest is None else beats.get((key, latest.attempt_id))
        if latest is not None and beat is not None:
            latest.signal_time, latest.signal_stamped_at = beat.beat_time, beat.stamped_at
        at = retry.check_at(state)
        if not is_watched(at, stored.get(key)):
            wrong.append(WrongCheck(key, at, stored.get(key)))
    return wrong
