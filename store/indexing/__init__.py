"""Indexes: tables that are derived from the log by a follower, outside of the commits of the writer. Decision 108."""
