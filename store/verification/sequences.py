"""Comparison of the database's sequences with the end of the log, and the command that repairs a sequence."""

from collections.abc import Sequence

from store.db.dialect import ReadSession
from store.models import Difference
from store.verification.differences import Differences

CHECK = "sequences"


async def check_sequences(session: ReadSession, commit_id: int, position: int, differences: Differences) -> None:
    """Report the sequences for commit ids and positions if their next numbers are already in the log."""
    numbers = session.dialect.last_numbers()
    if numbers is None or not commit_id:
        return
    (row,) = await session.fetch(numbers.statement, {})
    for name, last, number in zip(numbers.names, (commit_id, position), row, strict=True):
        if not isinstance(number, int) or number < last:
            differences.add(CHECK, name, "last_number", last, number)


def remedy(differences: Sequence[Difference]) -> str:
    """Return the remedy for sequences that are behind the log: a statement, or the advice to wait for the next write.

    Args:
        differences: the differences of `check_sequences`.
    """
    if any(difference.key.startswith("sqlite_sequence") for difference in differences):
        return "the next write repairs it"
    calls = ", ".join(f"setval('{difference.key}', {difference.expected})" for difference in differences)
    return f"as its owner, run: SELECT {calls}"
