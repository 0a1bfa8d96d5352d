"""The rules of the store: facts, states and decisions, without I/O, clock, randomness or SQL."""
