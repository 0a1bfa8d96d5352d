"""Programs with long-lived runners on a Ray cluster. Tests end these programs."""

from __future__ import annotations

import json
import logging
import sys
from functools import partial

from store.training.bundle import RunnerBundle
from store.training.execution import RayExecutionStrategy
from store.training.execution.fleet import Fleet
from store.training.execution.fleet_size import FleetLimits
from store.training.running.runner import Runner
from tests.training.execution.noted_work import work


def command(*arguments: str) -> None:
    """Run `rollbook runner tests.training.execution.noted_work:work` with arguments."""
    from store.cli.app import app

    app(["runner", "tests.training.execution.noted_work:work", *arguments])


def elastic(url: str, address: str, limits: str) -> None:
    """Run runners that follow the queue more quickly than those of the command, until a signal."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    runner = {"type": Runner, "heartbeat_interval": 20.0, "poll_interval": 2.0}
    bundle = RunnerBundle(work, runner, announce=partial(print, flush=True))
    fleet = Fleet(FleetLimits(*json.loads(limits)), announce=partial(print, flush=True), look_seconds=0.1)
    try:
        RayExecutionStrategy(address=address).run_runners(bundle, url, fleet)
    except KeyboardInterrupt:
        sys.exit(130)
