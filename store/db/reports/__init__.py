"""Reads for the pages of the dashboard: counts, groups and lists.

Most of them read summary columns and small tables, and not the bodies, which contain the payload of events.
"""
