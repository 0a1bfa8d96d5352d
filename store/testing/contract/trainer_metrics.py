"""Contract of the metrics of trainers: numbers of training steps, which are events and are read by name and step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from store.errors import Invalid, TooLarge
from store.interface.store import Store
from store.models.trainer_metrics import Metric, MetricsQuery

__all__ = ["TrainerMetricsContract"]


async def values(store: Store, **query: Any) -> list[tuple[str, int, float | str | None]]:
    """Return the name, the step and the number of each metric."""
    metrics = await store.log.metrics(MetricsQuery(**query))
    return [(metric.name, metric.step, metric.mark or metric.value) for metric in metrics]


class TrainerMetricsContract:
    """Tests of the metrics of trainers."""

    pytestmark = pytest.mark.asyncio

    async def test_metrics_are_returned_by_name_and_step(self, store: Store) -> None:
        await store.log_metrics(2, {"loss": 0.5, "val/accuracy": 1})
        await store.log_metrics(10, {"loss": 0.1 + 0.2})
        assert await values(store) == [("loss", 2, 0.5), ("loss", 10, 0.1 + 0.2), ("val/accuracy", 2, 1.0)]
        assert await values(store, names=["loss"], first_step=3, last_step=10) == [("loss", 10, 0.1 + 0.2)]
        assert await values(store, limit=1) == [("loss", 10, 0.1 + 0.2)]
        assert await values(store, names=[]) == []

    async def test_last_metric_of_a_step_is_returned_and_all_stay_in_the_log(self, store: Store) -> None:
        await store.log_metrics(1, {"loss": 2.0, "kl": 0.0})
        (first, *_) = await store.log.metrics()
        await store.log_metrics(1, {"loss": 1.0})
        assert await values(store) == [("kl", 1, 0.0), ("loss", 1, 1.0)]
        assert await values(store, as_at=first.position) == [("kl", 1, 0.0), ("loss", 1, 2.0)]
        events = [event async for event in store.log.tail(types=["metrics.logged"])]
        assert [(event.stream, event.data) for event in events] == [
            ("store", {"step": 1, "values": [["kl", 0.0], ["loss", 2.0]]}),
            ("store", {"step": 1, "values": [["loss", 1.0]]}),
        ]

    async def test_metric_of_a_diverged_training_is_marked(self, store: Store) -> None:
        await store.log_metrics(0, {"loss": math.nan, "up": math.inf, "down": -math.inf})
        assert await values(store) == [("down", 0, "-Infinity"), ("loss", 0, "NaN"), ("up", 0, "Infinity")]
        assert isinstance((await store.log.metrics())[0], Metric)
        report = await store.log.verify()
        assert report.differences == []

    @pytest.mark.parametrize(
        ("step", "metrics"),
        [
            (-1, {"loss": 1.0}),
            (True, {"loss": 1.0}),
            (1.5, {"loss": 1.0}),
            (2**60, {"loss": 1.0}),
            (1, {}),
            (1, {"": 1.0}),
            (1, {"a\nb": 1.0}),
            (1, {1: 1.0}),
            (1, {"loss": True}),
            (1, {"loss": None}),
            (1, {"loss": "0.5"}),
            (1, {"loss": [1.0]}),
            (1, {"loss": 10**400}),
            (1, [("loss", 1.0)]),
        ],
    )
    async def test_malformed_metrics_are_invalid(self, store: Store, step: Any, metrics: Any) -> None:
        with pytest.raises(Invalid):
            await store.log_metrics(step, metrics)
        assert await values(store) == []

    async def test_too_many_metrics_and_long_names_are_too_large(self, store: Store) -> None:
        longest = {f"{number:02}" + "é" * 31: 1.7976931348623157e308 for number in range(64)}
        await store.log_metrics(2**53, longest)
        assert len(await values(store)) == 64
        with pytest.raises(TooLarge, match="split"):
            await store.log_metrics(1, {**longest, "loss": 1.0})
        with pytest.raises(TooLarge):
            await store.log_metrics(1, {"n" * 65: 1.0})
