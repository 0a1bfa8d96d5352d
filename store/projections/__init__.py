"""Computation of the rows of projections. A projection is a table whose rows are computed from the events of the log.

`store.domain` applies the events of an object, such as a rollout, to the state of this object. The pure functions here
convert states, and some single events, to rows.
"""
