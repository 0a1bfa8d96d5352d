"""The agent: answers one query with one ranking, and tells what it did as four OpenTelemetry spans. Knows no store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Status, StatusCode

from store.examples.doc_search.bm25f import Ranking, Searcher
from store.examples.doc_search.corpus import split_words
from store.semconv import REWARD

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from store.examples.doc_search.library import Library

RESULTS = 10
"""How far down the list an answer still earns something."""
RANKING = "ranking"
"""Under which name the ranking to use stands among a rollout's resources."""
SPANS = ("index", "retrieve", "rank", "reward")

_SEARCHERS_KEPT = 4


class SearchAgent:
    """A search engine over one library. It keeps the last few rankings it was asked for ready to use."""

    def __init__(self, library: Library, service: str) -> None:
        self._library = library
        self._searchers: dict[Ranking, Searcher] = {}
        self._ids = _OneTraceAtATime()
        self._finished = InMemorySpanExporter()
        # Nothing is buffered, so there is nothing to flush at exit.
        provider = TracerProvider(
            id_generator=self._ids, resource=Resource.create({"service.name": service}), shutdown_on_exit=False
        )
        provider.add_span_processor(SimpleSpanProcessor(self._finished))
        self._tracer = provider.get_tracer(__name__)

    def answer(self, query: str, document: int, name: str, ranking: Ranking) -> None:
        """Search for a query and reward the result: 1/rank of the document it is about, 0 beyond the tenth place.

        Args:
            query: what to search for.
            document: the number of the document that is the right answer.
            name: its name, which must be the one this library has under that number.
            ranking: how to rank.

        Raises:
            LookupError: this library's document of that number has another name: it was made from another Python.
        """
        names, span = self._library.names, self._tracer.start_as_current_span
        self._ids.begin_trace()
        with span("index") as step:
            if not 0 <= document < len(names) or names[document] != name:
                raise LookupError(f"document {document} of this Python's standard library is not {name}")
            step.set_attributes({"index.documents": len(names), "index.ranking": ranking.to_json()})
            step.set_attribute("index.was_at_hand", ranking in self._searchers)
            searcher = self._searcher(ranking)
            step.set_status(Status(StatusCode.OK))
        with span("retrieve") as step:
            words = split_words(query)
            scores = searcher.retrieve(words, RESULTS)
            step.set_attributes({"retrieve.words": words, "retrieve.documents": len(scores)})
            step.set_status(Status(StatusCode.OK))
        with span("rank") as step:
            ranked = searcher.rank(scores, RESULTS)
            found = [number for number, _ in ranked]
            step.set_attribute("rank.results", [names[number] for number in found])
            step.set_attribute("rank.scores", [score for _, score in ranked])
            step.set_status(Status(StatusCode.OK))
        with span("reward") as step:
            rank = found.index(document) + 1 if document in found else 0
            step.set_attributes({f"{REWARD}.0.name": "reciprocal_rank", f"{REWARD}.0.value": 1 / rank if rank else 0.0})
            step.set_attribute("reward.rank", rank)
            step.set_status(Status(StatusCode.OK))

    def take_spans(self) -> tuple[ReadableSpan, ...]:
        """Return the spans finished since the last call, in the order they ended."""
        spans = self._finished.get_finished_spans()
        self._finished.clear()
        return spans

    def _searcher(self, ranking: Ranking) -> Searcher:
        searcher = self._searchers.get(ranking)
        if searcher is None:
            searcher = self._searchers[ranking] = Searcher(self._library.index, ranking)
            if len(self._searchers) > _SEARCHERS_KEPT:
                del self._searchers[next(iter(self._searchers))]
        return searcher


class _OneTraceAtATime(RandomIdGenerator):
    """Gives the steps of one answer, none of which contains the others, the trace they have in common."""

    def __init__(self) -> None:
        self._trace_id = super().generate_trace_id()

    def begin_trace(self) -> None:
        self._trace_id = super().generate_trace_id()

    def generate_trace_id(self) -> int:
        return self._trace_id
