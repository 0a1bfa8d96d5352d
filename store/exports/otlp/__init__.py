"""Spans of a store to collectors of OpenTelemetry, over OTLP/HTTP. Decision 102."""
