"""Transcripts as blocks: turns, tool calls and their edits."""
