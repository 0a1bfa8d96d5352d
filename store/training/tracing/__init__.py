"""Tracing: the tracer, its recorders and spool, the scope of an attempt, and the emitters of spans."""
