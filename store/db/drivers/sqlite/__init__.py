"""SQLite driver: its dialect, the connection that writes, the connections that read, and checkpoints."""
