"""Wire protocol: paths, request bodies, errors and JSON, as the server and the client use them.

It consists of Agent-lightning 0.3's routes and Rollbook's own routes under the same prefix.
"""
