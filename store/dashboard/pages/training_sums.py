"""The page of training data: the data that training would use from the rollouts of a step or a group."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest
from store.dashboard.views.training import ADAPTERS, TrainingView, training_view
from store.dashboard.views.training_sums import training_sums
from store.models import AttemptedRollout, Rollout
from store.models.queries import RolloutQuery, SpanQuery

pages = Pages()

ROLLOUTS: Final = 100
"""The number of rollouts per page."""
SPANS: Final = 1_000
"""The maximum number of spans that are read for one rollout."""
_AT_ONCE: Final = 8


@pages.get("/ui/training")
async def training(request: PageRequest) -> PageContent:
    """Show the data that training would use of rollouts, newest first, with sums by rule.

    The parameters are `step`, `group`, `adapter`: tracer or proxy, `rows`: calls or conversations, and `offset`.
    """
    step = request.maybe_whole("step", least=-(2**63), most=2**63 - 1)
    group = request.one("group") or None
    adapter = request.among("adapter", list(ADAPTERS), "tracer")
    merge_turns = request.among("rows", ("calls", "conversations"), "calls") == "conversations"
    offset = request.whole("offset", 0)
    query = RolloutQuery.of(
        step_in=None if step is None else [step], group_in=None if group is None else [group], limit=0
    )
    total = (await request.store.find_rollouts(query)).total
    # Rollouts are read from the end of the log. For an order by start, the database would sort all rollouts.
    last = max(total - offset, 0)
    limit = min(last, ROLLOUTS)
    query = query.model_copy(update={"limit": limit, "offset": last - limit})
    rollouts = (await request.store.find_rollouts(query)).items[::-1]
    views: list[tuple[Rollout, TrainingView]] = []
    for start in range(0, len(rollouts), _AT_ONCE):
        reads = (
            _view(request, rollout, adapter, merge_turns=merge_turns) for rollout in rollouts[start : start + _AT_ONCE]
        )
        views += await asyncio.gather(*reads)
    values = {
        "sums": training_sums(views),
        "total": total,
        "limit": ROLLOUTS,
        "offset": offset,
        "step": step,
        "group": group,
    }
    hidden = {"adapters": list(ADAPTERS), "adapter": adapter, "merge_turns": merge_turns}
    return PageContent("training_sums.html", values, "Training data", hidden=hidden)


async def _view(
    request: PageRequest, rollout: Rollout, adapter: str, *, merge_turns: bool
) -> tuple[Rollout, TrainingView]:
    """Return the training view of the latest attempt of a rollout, without the tokens themselves."""
    if not isinstance(rollout, AttemptedRollout):
        return rollout, training_view([], adapter)
    query = SpanQuery.of(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id, limit=SPANS)
    spans = (await request.store.find_spans(query)).items
    # Row 0 does not exist, so no tokens are returned.
    return rollout, await asyncio.to_thread(partial(training_view, spans, adapter, merge_turns=merge_turns, row=0))
