"""SQLite driver: its dialect, the writer's connection, the readers, checkpoints."""
