"""Exported tables in databases: in SQLite, for statements and files, and in Postgres. Decision 98."""
