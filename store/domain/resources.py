"""The state of one id of resources, and the function that applies an event to this state."""

from dataclasses import dataclass

from store.domain.events import Event, ResourcesPublished, ResourcesReplaced
from store.errors import Corrupt


@dataclass(slots=True)
class ResourcesState:
    """The state of the resources under one id."""

    resources_id: str
    version: int
    """The number of publications under the id."""
    create_at: int
    """The time of the first publication, in microseconds since the epoch."""
    update_at: int
    """The time of the last publication, in microseconds since the epoch."""
    body_position: int
    """The position in the log of the event that contains the current values."""
    stream_version: int
    """The version of the last event."""
    first_position: int
    """The position of the first event."""
    last_position: int
    """The position of the last event. Among all ids, the resources with the greatest position are the latest."""


def evolve(state: ResourcesState | None, event: Event) -> ResourcesState:
    """Apply the next event of the resources, and return the new state, which may be the same object.

    Raises:
        Corrupt: the event does not follow from the state.
    """
    match event.fact, state:
        case ResourcesPublished(version=version), None:
            return ResourcesState(
                resources_id=event.stream.removeprefix("resources/"),
                version=version,
                create_at=event.at,
                update_at=event.at,
                body_position=event.position,
                stream_version=event.version,
                first_position=event.position,
                last_position=event.position,
            )
        case ResourcesReplaced(version=version), ResourcesState():
            if version != state.version + 1 or event.version != state.stream_version + 1:
                raise Corrupt(event.stream, f"version {version}", f"version {state.version + 1}")
            state.version = version
            state.update_at = event.at
            state.body_position = event.position
            state.stream_version = event.version
            state.last_position = event.position
            return state
        case _:
            raise Corrupt(event.stream, event.fact.type, "resources.published as the first event, then replacements")
