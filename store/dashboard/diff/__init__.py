"""Differences between texts, transcripts and traces."""
