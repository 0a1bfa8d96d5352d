"""Drivers of databases. Each database has a package."""
