"""The rules of the store: contents of events, states, and decisions. They use no I/O, clock, random numbers or SQL."""
