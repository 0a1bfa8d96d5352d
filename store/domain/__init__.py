"""What the store decides: facts, states and rules. Pure: no I/O, no clock, no randomness, no SQL."""
