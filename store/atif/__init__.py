"""ATIF, the Agent Trajectory Interchange Format of Harbor: attempts become documents, and documents become spans.

A document has the conversations of an attempt as ATIF's steps. Data without a field in ATIF is under the key `rollbook`
of `extra` objects, and nowhere else. So an import can restore the same attempt from the document. Decision 103.
"""
