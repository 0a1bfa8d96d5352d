"""Prometheus metrics of the server."""
