"""Schema of a store: the check whether this program can use an existing schema, the creation, and the upgrades.

Opening a store begins with `prepare_sqlite` or `prepare_postgres`; `migrate` implements the command `rollbook migrate`.
Upgrades from revision to revision are in `migrations/`. Alembic is imported only if a database must be upgraded.
"""

from store.db.schema.history import HEAD, DatabaseInfo
from store.db.schema.partitions import Migrated, migrate
from store.db.schema.postgres import lock_key, prepare_postgres
from store.db.schema.sqlite import prepare_sqlite
from store.db.schema.sqlite_files import read_only_uri

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
