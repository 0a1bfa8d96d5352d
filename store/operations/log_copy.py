"""Copy of a log to a database, in chunks of whole commits. Each chunk is one transaction."""

from store.db.dialect import Changes, Unfinished, WriteSession
from store.db.tables import core as core_tables
from store.errors import Incompatible
from store.operations.log_source import BEGINNING, EndOfLog, LogSource, end_of
from store.runtime.progress import OnProgress, OperationProgress


class LogCopy:
    """The copy of a log. It begins after the commits that the target already contains.

    Args:
        source: the log that is copied.
        target: the place of the copy.
        writer: the session that writes to it.
        on_progress: called with the number of copied events.
    """

    def __init__(self, source: LogSource, target: Unfinished, writer: WriteSession, on_progress: OnProgress) -> None:
        self._source = source
        self._target = target
        self._writer = writer
        self._on_progress = on_progress
        self.end = BEGINNING
        """The last commit that was copied."""
        self.needed = 0
        """The position up to which the log must be copied, because an event there ordered the removal of a body."""

    async def resume(self) -> None:
        """Find the last commit of the target, and check that the source contains it.

        Raises:
            Incompatible: the source does not contain the commit, so the target is a copy of another log.
        """
        async with self._target.read() as session:
            reached = await end_of(session)
        commit = await self._source.end(reached.commit_id)
        if commit != reached:
            raise Incompatible(
                f"the source does not contain commit {reached.commit_id} of the unfinished copy, whose hash is"
                f" {reached.chain_hash.hex()}: its commit {commit.commit_id} has the hash {commit.chain_hash.hex()}",
                "delete the unfinished copy, or give the source from which it was made",
            )
        self.end = reached

    async def run(self, end: EndOfLog) -> None:
        """Copy the log up to a commit of the source."""
        self._report(end)
        while await self._copy_chunk(end):
            self._report(end)
            await self._writer.rest()

    def _report(self, end: EndOfLog) -> None:
        self._on_progress(OperationProgress("copying the log", self.end.events, end.events))

    async def _copy_chunk(self, end: EndOfLog) -> bool:
        """Copy the next commits with all rows that belong to them; return False if there are none up to `end`."""
        writer = self._writer
        async with self._source.chunk(self.end, end) as chunk:
            if chunk is None:
                return False
            self.needed = max(self.needed, chunk.needed)
            tail = await writer.begin()
            if tail.commit_id != self.end.commit_id:
                raise Incompatible("another process continues the same copy", "wait until it ends")
            rows = {table: some for table, some in (await chunk.rows(writer)).items() if some}
        reached = chunk.reached
        await self._target.append(writer, rows, reached.commit_id, reached.position)
        if chunk.dropped:
            # A body may have been copied before the source removed it.
            await writer.write(Changes({}, {}, {core_tables.bodies: [(position,) for position in chunk.dropped]}))
        await writer.commit()
        self.end = reached
        return True
