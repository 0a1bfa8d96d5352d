"""The page with the checks of the database and of the server's machine, as `rollbook doctor` makes them."""

from __future__ import annotations

import asyncio

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest

pages = Pages()


@pages.get("/ui/admin/checks", role="admin")
async def checks(request: PageRequest) -> PageContent:
    """Check the database and the server's machine, and show the results with remedies. The checks only read."""
    # Most servers never make these checks, which import the drivers of all databases.
    from store.operations import diagnose

    url = request.store.core.dialect.url
    found = None
    if url.scheme != "memory":
        # The checks open the database a second time. With SQLite, they block their event loop, so they have their own.
        # The port of this server is in use by this server, so it is not checked.
        found = await asyncio.to_thread(lambda: asyncio.run(diagnose(url.text, port=None)))
    return PageContent("admin_checks.html", {"diagnosis": found}, "Checks")
