"""Building blocks of all tables: column types that mean the same on both databases, and names of keys."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text, UniqueConstraint
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

# One order of text on both databases: by code point. SQLite's default is that already.
Str: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")
# SQLite gives rowid semantics (and AUTOINCREMENT) only to a column spelled INTEGER.
BigId: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
Number: TypeEngine[float] = Double()


def keyed(name: str, *columns: Column[object] | UniqueConstraint | Index, family: str = "projection") -> Table:
    """Return a table found by its key only: on SQLite the primary key is the table."""
    return Table(name, metadata, *columns, sqlite_with_rowid=False, info={"family": family})
