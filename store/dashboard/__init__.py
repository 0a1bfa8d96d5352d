"""The dashboard: HTML pages about a store, each also available as JSON.

A page is a function that converts a `PageRequest` to plain values. A template renders the values as HTML. The JSON twin
of the page contains the values themselves. This package does not depend on HTTP: `store.server.routes.dashboard` serves
the pages.
"""
