"""Write the triplets of Agent-lightning's adapter for rollouts that its client reads."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from agentlightning import LightningStoreClient, TracerTraceToTriplet

from tests.interop.inside.claims import stay_on_this_machine


async def _triplets(url: str, rollout_ids: list[str]) -> dict[str, list[dict[str, Any]]]:
    store = LightningStoreClient(url)
    try:
        return {
            rollout_id: [
                triplet.model_dump(mode="json")
                for triplet in TracerTraceToTriplet().adapt(list(await store.query_spans(rollout_id, "latest")))
            ]
            for rollout_id in rollout_ids
        }
    finally:
        await store.close()


if __name__ == "__main__":
    stay_on_this_machine()
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("rollouts", nargs="+")
    options = parser.parse_args()
    options.report.write_text(json.dumps(asyncio.run(_triplets(options.url, options.rollouts))))
