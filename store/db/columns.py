"""Building blocks of tables: column types with the same meaning on SQLite and Postgres, and names of keys."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text, UniqueConstraint
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

# Both databases must sort text by code point. SQLite does so by default; Postgres needs the collation "C".
Str: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")
# SQLite uses a primary key as the rowid, and allows AUTOINCREMENT, only if the type of the column is exactly INTEGER.
BigId: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
Number: TypeEngine[float] = Double()


def keyed(name: str, *columns: Column[object] | UniqueConstraint | Index, family: str = "projection") -> Table:
    """Return a table whose rows are found by key.

    On SQLite, the table is WITHOUT ROWID, so the primary key stores the rows.
    """
    return Table(name, metadata, *columns, sqlite_with_rowid=False, info={"family": family})
