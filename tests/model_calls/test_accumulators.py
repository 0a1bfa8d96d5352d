"""The reader of streams agrees with the accumulators of the openai and anthropic clients, after every event."""

from __future__ import annotations

import pytest

from store.model_calls import Protocol, read_call, stream_reader
from tests.model_calls.accumulators import ENDS_ONLY, REFUSED, SNAPSHOTS
from tests.model_calls.entries import Entry
from tests.model_calls.facts import LIMIT, unequal
from tests.model_calls.test_corpus import parsed_events, streams_of

# The accumulators dump objects with values of other types than their fields have.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
WHERE_REFUSED = {name for names in REFUSED.values() for name in names}
WHERE_ENDS_ONLY = {name for names in ENDS_ONLY.values() for name in names}


@pytest.mark.parametrize("protocol", SNAPSHOTS)
def test_reader_agrees_with_the_accumulator_of_the_client(protocol: Protocol) -> None:
    wrong: list[str] = []
    for entry in streams_of(protocol):
        lines, is_equal_at_end = compared(protocol, entry)
        if entry.name in WHERE_REFUSED:
            wrong += [f"{entry.name}: equal, so it is no exception"] if is_equal_at_end else []
        elif entry.name in WHERE_ENDS_ONLY:
            wrong += lines if not is_equal_at_end else [] if lines else [f"{entry.name}: equal after every event"]
        else:
            wrong += lines
    assert not wrong, "\n".join(wrong)


def compared(protocol: Protocol, entry: Entry) -> tuple[list[str], bool]:
    """Return the differences of the calls after each event, and whether the calls are equal at the end."""
    reader = stream_reader(protocol, LIMIT)
    events = list(parsed_events(entry.stream))
    wrong: list[str] = []
    is_equal = False
    try:
        for event, snapshot in zip(events, SNAPSHOTS[protocol](events), strict=True):
            reader.add(event)
            ours = read_call(protocol, entry.request, reader.response())
            theirs = read_call(protocol, entry.request, snapshot)
            is_equal = ours == theirs
            wrong += unequal(f"{entry.name}: after {event}", ours, theirs)
    except Exception as error:  # noqa: BLE001 - the accumulators raise errors of many kinds
        return [*wrong, f"{entry.name}: {type(error).__name__}: {error}"], False
    return wrong, is_equal or not events
