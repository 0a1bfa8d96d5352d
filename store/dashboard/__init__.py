"""The pages of a store: what people look at, and the same as JSON.

Each page is a function from what was asked (`store.dashboard.request`) to plain values; a template draws them, and the
page's JSON twin is the values themselves. Nothing here knows of HTTP: `store.server.routes.dashboard` serves it.
"""
