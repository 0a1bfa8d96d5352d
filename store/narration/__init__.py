"""Sentences that describe the events of the log, for commands and pages."""
