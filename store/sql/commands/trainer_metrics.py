"""The command that logs metrics of a trainer, made from arguments that are checked."""

from __future__ import annotations

from store.domain.events import MetricsLogged
from store.domain.trainer_metrics import LogMetrics
from store.models.calls import LogMetricsCall
from store.validation import trainer_metrics


def log_metrics(call: LogMetricsCall) -> LogMetrics:
    """Return the command that logs metrics.

    Raises:
        Invalid, TooLarge: see `Store.log_metrics`.
    """
    step, values = trainer_metrics.step_of(call.step), trainer_metrics.values_of(call.metrics)
    return LogMetrics(fact=MetricsLogged(step, [list(item) for item in values.items()]))
