"""Postgres driver: its dialect and its connection pool."""
