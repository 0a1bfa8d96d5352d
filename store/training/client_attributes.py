"""Conversion of calls to models to span attributes, for all protocols.

The attributes have the names that the LLM proxy of this package gives them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from store.llm_proxy.addresses import Endpoint
from store.llm_proxy.attributes import Attributes, put_reading, put_request
from store.llm_proxy.readings import read
from store.llm_proxy.streams import ASSEMBLIES
from store.training.openai_attributes import dumped

Json = dict[str, Any]

_NO_LIMIT: Final = sys.maxsize


def request_attributes(endpoint: Endpoint) -> Callable[[Mapping[str, Any]], Json]:
    """Return a function that converts a call's arguments to span attributes."""

    def of_request(request: Mapping[str, Any]) -> Json:
        into = Attributes((), _NO_LIMIT)
        # Iterators are left out, because they can be read only once and the client needs them.
        given = {name: value for name, value in request.items() if not hasattr(value, "__next__")}
        put_request(into, endpoint, dumped(given))
        return into.values

    return of_request


def response_attributes(endpoint: Endpoint) -> Callable[[Mapping[str, Any]], Json]:
    """Return a function that converts a response to span attributes."""

    def of_answer(answer: Mapping[str, Any]) -> Json:
        into = Attributes((), _NO_LIMIT)
        put_reading(into, read(endpoint, dict(answer)))
        return into.values

    return of_answer


def stream_assembly(endpoint: Endpoint) -> Callable[[Sequence[Any]], Json]:
    """Return a function that combines the events of a stream into one response."""

    def assembled(events: Sequence[Any]) -> Json:
        assembly = ASSEMBLIES[endpoint](_NO_LIMIT)
        for event in events:
            assembly.take(dumped(event), keeps=True)
        return assembly.answer()

    return assembled
