"""Wire protocol between client and server: paths, request bodies, errors and JSON.

The protocol consists of the routes of Agent-lightning 0.3, and of Rollbook's own routes under the same prefix.
"""
