"""Output of the command line: tables, events in words, times."""
