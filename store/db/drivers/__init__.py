"""Drivers of databases, one package each."""
