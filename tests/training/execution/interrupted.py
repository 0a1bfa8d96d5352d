"""A program that trains until it is interrupted: `python -m tests.training.execution.interrupted KIND URL`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from store.models import NamedResources, PromptTemplate
from store.training.algorithms.algorithm import algo
from store.training.running.agent import rollout
from store.training.tracing.emitters import emit_message
from store.training.trainer import Trainer

RESOURCES: NamedResources = {"prompt": PromptTemplate(template="0", engine="f-string")}


@rollout
async def patient(task: Any, prompt_template: PromptTemplate) -> None:
    """Say that it is at work, and never come to an end."""
    emit_message("at work")
    await asyncio.Event().wait()


@algo
async def train(store: Any, train_dataset: Any, initial_resources: Any) -> None:
    """Enqueue the tasks, and wait."""
    await store.add_resources(initial_resources)
    for task in train_dataset:
        await store.enqueue_rollout(task)
    await asyncio.Event().wait()


def main(kind: str, url: str) -> None:
    """Train, and exit with 130 when interrupted."""
    settings: dict[str, Any] = {"port": 0} if kind == "cs" else {}
    try:
        Trainer(algorithm=train, store=url, strategy=kind, n_runners=2, initial_resources=RESOURCES, **settings).fit(
            patient, [1, 2]
        )
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main(*sys.argv[1:])
