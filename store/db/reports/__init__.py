"""Counts, groups and lists for pages, read from summary columns and small tables, never from bodies."""
