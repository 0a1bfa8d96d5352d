"""Report of damaged tables by operations that read or change a whole store.

SQLite stores a value of any type in nearly every column, and a changed value may raise any error where it is read.
"""

import struct
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

from store.db.dialect import TypeFault, dialect_for, existing_store
from store.db.url import parse
from store.errors import Corrupt, StoreError
from store.runtime.progress import ProgressReporter

VALUE_ERRORS: Final = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(struct.error, zlib.error),
)
"""The errors that a value may raise if no store wrote it."""


@asynccontextmanager
async def store_damage_reported(url: str, reporter: ProgressReporter | None = None) -> AsyncGenerator[None]:
    """Report errors that only a damaged store causes as `Corrupt`, with the first value of a wrong type.

    Args:
        url: the URL of the store.
        reporter: receives the progress in the block. If it failed, its error is raised unchanged.
    """
    try:
        yield
    except StoreError:  # some of these are also errors of values
        raise
    except VALUE_ERRORS as error:
        if reporter is not None and reporter.has_failed:
            raise
        if (fault := await _first_fault(url)) is not None:
            raise Corrupt(f"{fault.table.name} {fault.key}, {fault.column}", fault.actual, fault.expected) from error
        subject = f"a value in the store {parse(url).shown}"
        raise Corrupt(subject, f"one that causes {type(error).__name__}: {error}", "one that a store wrote") from error


async def _first_fault(url: str) -> TypeFault | None:
    """Return the first value of another type than that of its column; None if there is none, or no answer."""
    parsed = parse(url)
    dialect = dialect_for(parsed)(parsed, None, read_only=True)
    with suppress(Exception):
        async with existing_store(dialect), dialect.read(snapshot=True) as session:
            return next(iter((await dialect.hide_type_faults(session)).first), None)
    return None
