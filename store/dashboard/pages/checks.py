"""Page that runs the checks of `rollbook doctor` for the server's database and machine."""

from __future__ import annotations

import asyncio

from store.dashboard.exclusive import Exclusive
from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.errors import Forbidden

pages = Pages()
_checking = Exclusive("a check")


@pages.get("/ui/admin/checks", role="admin")
async def checks(request: PageRequest) -> PageContent:
    """Check the database and the server's machine, and show the results with remedies. The checks only read.

    Raises:
        Conflict: the checks are already running.
        Forbidden: the visitor's key is valid for one partition only.
    """
    # This import is here because `diagnose` imports the drivers of all databases, and most servers never run it.
    from store.operations import diagnose

    if request.extra.get("key_partition") is not None:
        raise Forbidden("only a key for all partitions may see facts about the whole database and the machine")
    store, url = request.store, request.store.core.dialect.url
    diagnosis = None
    if url.scheme != "memory":
        with _checking.on(store):
            # The checks open the database a second time. On SQLite they block the event loop, so they run in another
            # thread with its own event loop. The port is not checked, because this server itself listens on it.
            diagnosis = await asyncio.to_thread(lambda: asyncio.run(diagnose(url.text, port=None)))
    return PageContent("admin_checks.html", {"diagnosis": diagnosis}, "Checks")
