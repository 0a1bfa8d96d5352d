"""Choices of the payload to remove: single events of a rollout, and events that contain a text."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationError, model_validator

from store.db.data_blocks import json_of
from store.db.queries.removal import Payload
from store.domain.events import RolloutAmended, RolloutEnqueued, RolloutStarted, SpanRecorded
from store.errors import Invalid
from store.models.enums import Frozen

Model = TypeVar("Model", bound=Frozen)

_CREATED = frozenset({RolloutEnqueued.type, RolloutStarted.type})


def validated(model: type[Model], values: dict[str, Any], subject: str) -> Model:
    """Return a model with these values. If an error concerns no single value, its field is `subject`.

    Raises:
        Invalid: a name is unknown, or a value is invalid.
    """
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or subject
        raise Invalid(field, first["msg"].removeprefix("Value error, ")) from None


class Redaction(Frozen):
    """A choice of events of a rollout, and the reason why their payload is removed. Exactly one choice is required.

    `Redaction.of` makes a redaction, and raises `Invalid` if a value is invalid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Annotated[str, Field(min_length=1, max_length=200)]
    """The reason. The log contains it, so it must not contain the removed text."""
    span_id: str | None = None
    """The spans with this id, in any attempt."""
    input: bool = False
    """The events that set the input. The event that creates a rollout contains its metadata in the same payload."""
    metadata: bool = False
    """The events that set the metadata. The event that creates a rollout contains its input in the same payload."""
    event: Annotated[int, Field(ge=1)] | None = None
    """The event with this number in the history of the rollout."""
    everything: bool = False
    """All events of the rollout, notes included."""

    @model_validator(mode="after")
    def _is_one_choice(self) -> Self:
        chosen = (self.span_id is not None, self.input, self.metadata, self.event is not None, self.everything)
        if sum(chosen) != 1:
            raise ValueError("choose exactly one of: a span, the input, the metadata, an event, everything")
        return self

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Return a redaction with these values.

        Raises:
            Invalid: a name is unknown, a value is invalid, or there is no choice or more than one choice.
        """
        return validated(cls, values, "choice")

    def chooses(self, payload: Payload) -> bool:
        """Return whether the payload of an event is removed."""
        if self.span_id is not None:
            return payload.type == SpanRecorded.type and json_of(payload.data)["span_id"] == self.span_id
        if self.event is not None:
            return payload.version == self.event
        if self.everything or payload.type in _CREATED:
            return True
        set_fields = json_of(payload.data)["fields"] if payload.type == RolloutAmended.type else ()
        return ("input" if self.input else "metadata") in set_fields


class Search(Frozen):
    """A search for a text in payload.

    `Search.of` makes a search, and raises `Invalid` if a value is invalid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Annotated[str, Field(min_length=3, max_length=1000)]
    """The text to find. It matches any part of a text, a key or a number in the JSON value."""
    ignore_case: bool = False

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Return a search with these values.

        Raises:
            Invalid: a name is unknown, or a value is invalid. The text must have 3 to 1,000 characters.
        """
        return validated(cls, values, "search")
