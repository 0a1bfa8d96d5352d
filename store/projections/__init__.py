"""State → row, one function per table. Pure; no transition lives here."""
