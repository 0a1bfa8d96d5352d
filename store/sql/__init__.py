"""The SQL implementation of the store."""
