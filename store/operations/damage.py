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
"""The errors that the code may raise when it reads a value that no store wrote."""


@asynccontextmanager
async def store_damage_reported(url: str, reporter: ProgressReporter | None = None) -> AsyncGenerator[None]:
    """Raise `Corrupt`, with the first value of a wrong type, instead of an error that only a damaged store causes.

    Args:
        url: the URL of the store.
        reporter: receives the progress in the block. If the reporter failed, its error is raised unchanged.
    """
    try:
        yield
    except StoreError:  # some errors of the store are also in `VALUE_ERRORS`
        raise
    except VALUE_ERRORS as error:
        if reporter is not None and reporter.has_failed:
            raise
        if (fault := await _first_fault(url)) is not None:
            raise Corrupt(f"{fault.table.name} {fault.key}, {fault.column}", fault.actual, fault.expected) from error
        subject = f"a value in the store {parse(url).shown}"
        raise Corrupt(subject, f"one that causes {type(error).__name__}: {error}", "one that a store wrote") from error


async def _first_fault(url: str) -> TypeFault | None:
    """Return the first value whose type is not the type of its column; None if there is none, or after an error."""
    parsed = parse(url)
    dialect = dialect_for(parsed)(parsed, None, read_only=True)
    with suppress(Exception):
        async with existing_store(dialect), dialect.read(snapshot=True) as session:
            return next(iter((await dialect.hide_type_faults(session)).first), None)
    return None
