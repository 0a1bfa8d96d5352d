"""Requests of the front end, and the responses to them."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from store.models.enums import Frozen, Open

_MAX_RUNS: Final = 1000


class PostRunBody(Open):
    """POST /api/run/{type}: the optional parameters of a run, which become its input."""

    flow_id: str | None = None
    """The id of the flow to which the run is added; without an id, the run gets a new flow."""
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
    """The scope: the subject for which the node runs again, such as a ticker."""
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
    """The reason why more runs again than the request selected; null if only the selected part runs again."""
    message: str | None
    """The reason why the request still waits for a runner; null once a runner has accepted the request.

    While the request waits, the run does not change.
    """


class RunsQuery(Frozen):
    """GET /api/run/."""

    include: str | None = None
    """The only value is `events`: the response then includes the events of each run."""
    limit: int = Field(default=_MAX_RUNS, ge=1, le=_MAX_RUNS)
    offset: int = Field(default=0, ge=0, le=2**63 - 1)


class RunRecord(Open):
    """A run; the response also contains its `events` if the request has `include=events`."""

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
    """The names of the retracted artifacts; a name occurs once for each retracted version."""
