"""Decoding of OpenTelemetry traces that arrive over OTLP, in protobuf or JSON."""
