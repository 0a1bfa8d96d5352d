"""Output of the command line: tables, sentences about events, times."""
