"""The dashboard: HTML pages about a store, each also available as JSON.

A page is a function from a `PageRequest` to plain values. A template renders them as HTML; the JSON twin of the page is
the values themselves. This package does not depend on HTTP: `store.server.routes.dashboard` serves the pages.
"""
