"""The whole log against all tables, in one snapshot.

A long log is compared by other processes as far as there is nothing to tell of it; the rest is compared here.
"""

from collections.abc import AsyncIterator, Sequence

from store.db.dialect import Dialect, ReadSession
from store.db.queries import scan
from store.db.tables import core as core_tables
from store.verification import state_hash
from store.verification.compare import STRETCHES, Calls, Comparison, Stretch
from store.verification.fold import Compared
from store.verification.pool import Team
from store.verification.pool_jobs import Compare


class Proof:
    """One comparison of everything; what it counts is complete once `run` has ended."""

    def __init__(self, dialect: Dialect, session: ReadSession, team: Team, calls: Calls) -> None:
        """Begin before the first stream.

        Args:
            dialect: the database.
            session: a snapshot of it, the one that the team looks at.
            team: processes that help.
            calls: tells whether the store is in use meanwhile.
        """
        self._dialect = dialect
        self._session = session
        self._team = team
        self._calls = calls
        self.events = 0
        self.streams = 0
        self.rows: dict[str, int] = {}
        """How many rows of each projection there are."""
        self.state_hash = ""

    async def run(self) -> AsyncIterator[Compared]:
        """Yield what was found, in the order of the streams; with a team, only where there is something wrong."""
        cuts = await state_hash.cuts(self._dialect, self._session)
        found = state_hash.StateHash(cuts)
        stretches = _cut(cuts) if len(self._team) else STRETCHES
        # Those that cannot be cut first: they may take longest.
        begun = sorted(stretches, key=lambda stretch: stretch.prefix == "rollout/")
        elsewhere = {stretch: self._team.begin(Compare(stretch=stretch, cuts=cuts)) for stretch in begun}
        async for rows in scan.all_rows(self._dialect, self._session, core_tables.queue):
            found.update(core_tables.queue, rows)
        for stretch in stretches:
            sound = await elsewhere[stretch]
            if sound is not None:
                self._count(sound.events, sound.streams)
                found.take(sound.hashed)
                continue
            comparison = Comparison(self._dialect, self._session, self._calls, found)
            async for compared in comparison.of(stretch):
                yield compared
            self._count(comparison.events, comparison.streams)
        self.rows = found.found().rows
        self.state_hash = found.hexdigest()

    def _count(self, events: int, streams: int) -> None:
        self.events += events
        self.streams += streams


def _cut(cuts: Sequence[str]) -> list[Stretch]:
    """Return stretches that together hold every stream, the rollouts cut into several."""
    found: list[Stretch] = []
    for stretch in STRETCHES:
        places = cuts if stretch.prefix == "rollout/" else ()
        for after, until in zip([None, *places], [*places, None], strict=True):
            found.append(stretch.model_copy(update={"after": after, "until": until}))
    return found
