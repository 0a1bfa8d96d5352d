"""Statements, tables and connections: the only SQL in the package."""
