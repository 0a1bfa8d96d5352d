"""Server processes: listeners, workers, connections, the fast path."""
