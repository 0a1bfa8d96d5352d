"""Requests of web front ends that are older than Rollbook, and the responses to them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from store.models.enums import Frozen, Open

_MOST: int = 1000


class PostRunBody(Open):
    """POST /api/run/{type}: the optional parameters of a run, which become its input."""

    flow_id: str | None = None
    """The id of the flow that the run joins; a new flow if absent."""
    date: str | None = None
    ticker: str | None = None
    tickers: list[str] | None = None
    portfolio_id: str | None = None


class PostedRun(Frozen):
    """The response to POST /api/run/{type}."""

    run_id: str
    flow_id: str
    status: Literal["queued"]


class RerunNodeBody(Frozen):
    """POST /api/run/rerun-node."""

    run_id: str
    node_id: str
    identifier: str
    date: str | None = None
    """The date of the run."""
    portfolio_id: str | None = None


class RerunBegun(Frozen):
    """The response to POST /api/run/rerun-node."""

    run_id: str
    phase: str
    status: Literal["queued"]
    rerun_seq: int
    attempt: int | None
    """The sequence id of the attempt that a runner has started; null while the request waits for a runner."""
    degraded: dict[str, Any] | None
    """The reason why more is run again than the request selected; null if only the selected part is run again."""
    message: str | None
    """The reason why the request still waits; null once a runner has accepted it.

    Until then the run stays unchanged.
    """


class RunsQuery(Frozen):
    """GET /api/run/."""

    include: str | None = None
    """`events` to include the events of each run."""
    limit: int = Field(default=_MOST, ge=1, le=_MOST)
    offset: int = Field(default=0, ge=0)


class RunRecord(Open):
    """A run, with its `events` if the request includes them."""

    id: str
    flow_id: str | None
    short_rid: str
    type: str
    status: Literal["queued", "running", "completed", "failed"]
    created_at: float
    completed_at: float | None
    user_id: str
    date: Any
    params: dict[str, Any]
    rerun_seq: int
    error: str | None


class PortfolioStageBody(Frozen):
    """DELETE /api/run/portfolio-stage."""

    date: str
    portfolio_id: str


class PortfolioStage(Frozen):
    """The response to DELETE /api/run/portfolio-stage."""

    date: str
    portfolio_id: str
    deleted: list[str]
    """The names of the withdrawn artifacts, once for each version."""
