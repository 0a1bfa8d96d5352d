"""Run an example of a page with only the address of the server replaced.

The example's `algorithm`, `agent` and `tasks` are the quiz; `sqlite:///run.db` is in `--directory`.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from agentlightning.store.base import LightningStore

from tests.interop.inside.claims import stay_on_this_machine
from tests.interop.inside.quiz import TRACED, BetterPrompt, Quiz


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--example", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    options = parser.parse_args()
    text = options.example.read_text().replace("http://localhost:4747", options.url)
    os.chdir(options.directory)
    tasks = [{"question": f"{number} + {number}?"} for number in range(3)]
    names: dict[str, Any] = {"algorithm": BetterPrompt(), "agent": Quiz(), "tasks": tasks}
    exec(compile(text, str(options.example), "exec"), names)
    asyncio.run(_prefers_the_better_prompt(names["trainer"].store))


async def _prefers_the_better_prompt(store: LightningStore) -> None:
    latest = await store.get_latest_resources()
    assert latest is not None
    assert latest.resources["best"].template == "polite 3.0"
    rollouts = await store.query_rollouts(sort_by="start_time", sort_order="desc", limit=6)
    for rollout in rollouts:
        assert rollout.status == "succeeded"
        # The default tracer delivers in batches, and adds a span of the whole session.
        names = sorted(span.name for span in await store.query_spans(rollout.rollout_id))
        assert names == sorted([*TRACED, f"{rollout.rollout_id}.session"]), names
    assert len(rollouts) == 6


if __name__ == "__main__":
    stay_on_this_machine()
    main()
