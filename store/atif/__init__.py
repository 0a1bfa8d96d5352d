"""ATIF, the Agent Trajectory Interchange Format of Harbor: attempts become documents, and documents become spans.

A document has the conversations of an attempt as ATIF's steps. Everything that ATIF has no field for is under the key
`rollbook` of the `extra` objects, and only there, so that a document can become the same attempt again. Decision 103.
"""
