"""Runners: claims, attempts, hooks, heartbeats and the metrics of executions."""
