"""OpenTelemetry: OTLP decoding and spans from the SDK."""
