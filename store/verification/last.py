"""The result of the last whole verification of a store. It is stored in the database, for metrics and the dashboard.

The result is not part of the log: a verification changes neither the log nor the projections. Decisions 60 and 64.
"""

from store.db.dialect import Dialect, dialect_for, existing_store
from store.db.queries import log as log_queries
from store.db.queries import operation_runs
from store.db.queries.operation_runs import RunResult
from store.db.url import parse
from store.models import VerifyReport
from store.runtime.clock import MICROSECONDS, system_clock


async def record(dialect: Dialect, report: VerifyReport, *, runner: str | None = None) -> None:
    """Store the result of a verification in place of the previous result. Call this in the dialect's event loop.

    Args:
        dialect: the database.
        report: the result.
        runner: the name of the process that claimed the run; None if it was not claimed.
    """
    now = (dialect.clock or system_clock)()
    async with dialect.read() as session:
        commit = await log_queries.commit_at(session, report.last_position)
    result = RunResult(
        started_at=now - round(report.seconds * MICROSECONDS),
        commit_id=0 if commit is None else commit.commit_id,
        differences=report.difference_count,
        detail=f"{report.events:,} events in {report.commits:,} commits, {report.streams:,} streams",
    )
    await operation_runs.succeed(dialect, "verify", result, runner=runner)


async def record_at(url: str, report: VerifyReport) -> None:
    """Store the result of a verification in the store at a URL. The store must exist and have the current schema."""
    parsed = parse(url)
    dialect = dialect_for(parsed)(parsed, None)
    async with existing_store(dialect):
        await record(dialect, report)
