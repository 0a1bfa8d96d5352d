"""Results of full-text search."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from store.models.enums import Frozen, RolloutStatus

TextScope = Literal["input", "system", "user", "assistant", "reasoning", "call", "result", "error", "note", "span"]
"""The kind of a text: an input, a message by its role, the arguments or the result of a tool call, and so on."""


class SearchHit(Frozen):
    """A text that matches, as an excerpt."""

    scope: TextScope
    name: str
    """The name of the tool or of the span, or the type of the error; empty if there is none."""
    text: str
    """The excerpt, exactly as it was recorded."""
    marks: list[tuple[int, int]]
    """The ranges of characters of `text` that match: the first character, and the one after the last."""
    is_start: bool
    """Whether the excerpt begins where the text begins."""
    is_end: bool
    """Whether the excerpt ends where the text ends."""
    number: int
    """The number of the event that recorded the text, in the rollout's history; the first one if it is repeated."""
    attempt_id: str | None = None
    span_id: str | None = None
    sequence_id: int | None = None
    """The attempt, id and number of the span that recorded the text; None for texts of other events."""


class SearchResult(Frozen):
    """A rollout with matching texts."""

    rollout_id: str
    status: RolloutStatus
    hits: list[SearchHit]
    """Some of the texts that match, the latest first. Within one rollout, all of them in the order of the log."""


class SearchPage(Frozen):
    """A page of the rollouts that match a query, those with the latest matching text first."""

    results: list[SearchResult]
    next: str | None
    """The cursor of the next page; None if there is none."""
    events_behind: int
    """The number of events of the log that the search did not see yet."""
    is_cut_off: bool = False
    """Whether the search ended at its limit of time or texts before the page was full. `next` continues it."""
    texts_searched: Annotated[int, Field(ge=0)] = 0
    """The number of texts that were compared with the regular expression."""
