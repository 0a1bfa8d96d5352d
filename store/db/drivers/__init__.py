"""The databases Rollbook knows, one module each."""
