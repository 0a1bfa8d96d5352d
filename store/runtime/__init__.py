"""Services of the running process: clock, ids, process identity, context variables, and the event-loop thread."""
