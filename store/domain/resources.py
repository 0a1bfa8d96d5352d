"""The state of one set of resources, and the function that applies a publication to it."""

from dataclasses import dataclass

from store.domain.events import Event, ResourcesPublished, ResourcesReplaced
from store.errors import Corrupt


@dataclass(slots=True)
class ResourcesState:
    """The state of the resources under one id. The latest resources are those with the greatest last position."""

    resources_id: str
    version: int
    create_at: int
    update_at: int
    body_position: int
    stream_version: int
    first_position: int
    last_position: int


def evolve(state: ResourcesState | None, event: Event) -> ResourcesState:
    """Apply one fact of a resources stream.

    Raises:
        Corrupt: the fact does not follow from the state.
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
            raise Corrupt(event.stream, event.fact.type, "one publication, then replacements")
