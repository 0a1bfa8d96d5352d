"""Metrics of a trainer: numbers of training steps, such as the loss. Decision 116."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from store.domain.commands import Command, LoadRequest
from store.domain.events import MetricsLogged
from store.domain.working_set import WorkingSet


@dataclass(slots=True, kw_only=True)
class LogMetrics(Command):
    """Record numbers of one training step."""

    fact: MetricsLogged

    def request_rows(self, request: LoadRequest) -> None:
        request.store_stream = True


def log_metrics(command: LogMetrics, working_set: WorkingSet) -> None:
    """Record the numbers as one event."""
    working_set.store_version = working_set.record_store(
        command.fact, working_set.store_version, actor=command.actor
    ).version


DECIDERS: Final[dict[type[Command], Callable[..., Any]]] = {LogMetrics: log_metrics}
