"""Statements that read: filters, pages, the working set, the log."""
