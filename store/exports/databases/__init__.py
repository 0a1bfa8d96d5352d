"""Exported tables in databases: in SQLite for SQL statements and for files, and in Postgres. Decision 98."""
