"""Computation of the rows of projections.

`store.domain` applies the events of an object, such as a rollout, to the state of this object. The pure functions here
convert states, and some single events, to rows.
"""
