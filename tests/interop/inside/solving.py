"""Run the agent in a file on the queue of a server, with Agent-lightning's runner and tracer or with ours."""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# Agent-lightning is not installed beside the type checker.

from __future__ import annotations

import argparse
import asyncio
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from tests.interop.inside.claims import stay_on_this_machine


def _agent(path: Path) -> Any:
    spec = spec_from_file_location("agent", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.solver


async def _solve(options: argparse.Namespace) -> None:
    package = import_module(options.package)
    if options.package == "agentlightning":
        store: Any = package.LightningStoreClient(options.url)
    else:
        store = import_module("store.client").HTTPStore(options.url)
    tracer = getattr(package, options.tracer)()
    runner = package.LitAgentRunner(tracer, max_rollouts=1, poll_interval=0.05, heartbeat_interval=0)
    runner.init(_agent(options.agent))
    runner.init_worker(0, store)
    try:
        await runner.iter()
    finally:
        runner.teardown_worker(0)
        runner.teardown()
        await store.close()


if __name__ == "__main__":
    stay_on_this_machine()
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", required=True)
    parser.add_argument("--tracer", required=True)
    parser.add_argument("--agent", type=Path, required=True)
    parser.add_argument("--url", required=True)
    asyncio.run(_solve(parser.parse_args()))
