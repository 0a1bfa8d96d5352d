"""Functions from states to rows, one pure function per table. Transitions of states are in `store.domain`."""
