"""Rows of states, one pure function per table. Transitions of states are in `store.domain`."""
