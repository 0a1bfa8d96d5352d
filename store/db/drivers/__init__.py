"""Drivers of databases. Each database has a package. The import of this package registers their dialects."""

from store.db.dialect import register

register("memory", "store.db.drivers.sqlite.dialect:SQLite")
register("sqlite", "store.db.drivers.sqlite.dialect:SQLite")
register("postgresql", "store.db.drivers.postgres.dialect:Postgres")
