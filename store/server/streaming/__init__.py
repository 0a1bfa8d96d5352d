"""Streams over SSE and WebSocket."""
