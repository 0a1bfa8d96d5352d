"""Writes to the log, and reads of the log and of past states.

The steps of a batch are: load the states that the commands need, decide which events the commands record, apply these
events to the states, append the events to the log, and write the rows that follow from the new states.
"""
