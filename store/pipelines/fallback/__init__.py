"""Store that continues the executions of a pipeline in files while its database is unavailable."""
