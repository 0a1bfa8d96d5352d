"""Web front end of trading pipelines that are older than Rollbook: its routes, its streams and its messages."""
