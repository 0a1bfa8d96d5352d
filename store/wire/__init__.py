"""The wire protocol: paths, request bodies, errors and JSON, as the server and the client both use them.

It is Agent-lightning 0.3's, route by route, and Rollbook's own routes under the same prefix.
"""
