"""Building blocks of tables: column types with the same meaning on both databases, and names of keys."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text, UniqueConstraint
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

# Text has the same order on both databases, by code point. This is SQLite's default.
Str: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")
# SQLite gives rowid semantics (and AUTOINCREMENT) only to a column spelled INTEGER.
BigId: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
Number: TypeEngine[float] = Double()


def keyed(name: str, *columns: Column[object] | UniqueConstraint | Index, family: str = "projection") -> Table:
    """Return a table that is read only by its key. On SQLite the index of the primary key stores the rows."""
    return Table(name, metadata, *columns, sqlite_with_rowid=False, info={"family": family})
