"""Rollouts in the states that pages distinguish."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any, Final

import pytest

from store.interface.store import Store
from store.models import UNSET, AttemptedRollout, AttemptError, Span
from store.semconv import reward_attributes
from tests.conftest import POSTGRES, SQLITE

ON_BOTH: Final = pytest.mark.parametrize("store_url", [SQLITE, POSTGRES], indirect=True)
"""For tests of SQL. The other tests use SQLite."""

HOSTILE: Final = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


async def failed(
    store: Store, error: AttemptError | None = None, *, worker: str = "w-1", **fields: Any
) -> AttemptedRollout:
    """Return a rollout whose only attempt failed."""
    begun = await store.start_rollout(fields.pop("input", {"question": 1}), worker_id=worker, **fields)
    reason = UNSET if error is None else error
    await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="failed", error=reason)
    return begun


async def succeeded(store: Store, **fields: Any) -> AttemptedRollout:
    """Return a rollout whose only attempt succeeded."""
    begun = await store.start_rollout(fields.pop("input", {"question": 1}), **fields)
    await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status="succeeded")
    return begun


def rewarded(begun: AttemptedRollout, value: float) -> Span:
    """Return a span with a reward."""
    return Span.from_attributes(
        attributes=reward_attributes({"primary": value}),
        rollout_id=begun.rollout_id,
        attempt_id=begun.attempt.attempt_id,
        sequence_id=1,
        name="reward",
    )


class Read(HTMLParser):
    """A page as it is read: its links, its tags, its text."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.marks: list[dict[str, str | None]] = []
        """The attributes of each tag."""
        self.text = ""
        self.feed(body.decode())
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.marks.append(dict(attrs))
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"

    def marked(self, name: str) -> list[str]:
        """Return the values of an attribute, in the order of the page."""
        return [value for mark in self.marks if (value := mark.get(name)) is not None]
