"""The metrics page: curves of a trainer on the axis of the rewards, with gaps where a number is not finite."""

from __future__ import annotations

import math
from typing import Any

from store.interface.store import Store
from store.models import PromptTemplate
from tests.dashboard.page_helpers import HOSTILE, Read, succeeded
from tests.server.api import Api


async def test_metrics_share_the_steps_and_the_marks_of_the_rewards(api: Api, store: Store) -> None:
    empty = await api.get("//ui/metrics")
    assert "await store.log_metrics(step" in Read(empty.body).text
    name = HOSTILE[:64]
    await store.update_resources("prompt", {"p": PromptTemplate(template="a", engine="f-string")})
    await succeeded(store, metadata={"rollbook.step": 1}, resources_id="prompt")
    await succeeded(store, metadata={"rollbook.step": 5}, resources_id="prompt")
    for step, loss in ((2, 1.0), (3, math.nan), (4, 0.5)):
        await store.log_metrics(step, {"loss": loss, name: step})
    page: Any = (await api.get("//ui/metrics.json?name=loss")).ok()
    (chart,) = page["charts"]
    (line,) = chart["series"]
    assert (chart["title"], chart["start"]) == ("loss", [1, 2, 3, 4, 5])
    assert (line["mean"], line["ended"]) == ([None, 1.0, None, 0.5, None], [0, 1, 1, 1, 0])
    assert [(mark["at"], mark["label"]) for mark in page["markers"]] == [(1, "v1")]
    assert page["names"] == [name, "loss"]
    html = Read((await api.get("//ui/metrics")).body)
    assert not any("onerror" in mark for mark in html.marks)
    assert name in html.text
    assert "/ui/rollouts?step=4" in html.links
    assert "/ui/metrics" in Read((await api.get("//ui/rewards")).body).links
