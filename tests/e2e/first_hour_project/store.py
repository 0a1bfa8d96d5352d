"""The project's own module `store`, which has the name of the package's alias."""

import os

import rollbook


async def opened() -> rollbook.Store:
    """Open the store of the project."""
    return await rollbook.open_store(os.environ["ROLLBOOK_DB"])
