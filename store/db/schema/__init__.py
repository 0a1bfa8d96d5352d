"""Schema of a database: the check whether this program can use it, its creation, and upgrades.

Opening a store begins with `prepare_sqlite` or `prepare_postgres`; `migrate` implements the command `rollbook migrate`.
Revisions are in `migrations/`. A new or current database does not import alembic.
"""

from store.db.schema.history import HEAD, DatabaseInfo
from store.db.schema.partitions import Migrated, migrate
from store.db.schema.postgres import lock_key, prepare_postgres
from store.db.schema.sqlite import prepare_sqlite, read_only_uri

__all__ = [
    "HEAD",
    "DatabaseInfo",
    "Migrated",
    "lock_key",
    "migrate",
    "prepare_postgres",
    "prepare_sqlite",
    "read_only_uri",
]
