"""Agent-lightning's client fills the server at `--url` with rollouts, and prints their ids."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import asyncio
import json

from agentlightning import LightningStoreClient, types

from tests.imports.served_rollouts import fill
from tests.interop.inside.claims import arguments, stay_on_this_machine


async def main() -> None:
    store = LightningStoreClient(arguments().url)
    print(json.dumps(await fill(store, types)))
    await store.close()


if __name__ == "__main__":
    stay_on_this_machine()
    asyncio.run(main())
