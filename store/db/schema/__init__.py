"""The schema of a database: whether this program can use it, how a new one is made, how an old one is upgraded.

`prepare_sqlite` and `prepare_postgres` are what opening a store begins with, `migrate` is the command. Revisions live
in `migrations/`; an up-to-date or new database never imports alembic.
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
