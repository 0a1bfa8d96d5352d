"""Runtime services: clock, ids, process identity, context, the event-loop thread."""
