"""Sending of a store's spans to collectors of OpenTelemetry over OTLP/HTTP. Decision 102."""
