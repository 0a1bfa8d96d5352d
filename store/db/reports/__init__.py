"""Counts, groups and lists for people: read from summary columns and small tables, never from bodies."""
