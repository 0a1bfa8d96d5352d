"""Reads of the tables: filters, pages, the log, runs, threads, and the rows that a batch of calls needs."""
