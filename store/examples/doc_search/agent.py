"""Agent that answers one query with a given ranking, the parameters of a search engine over documents.

The agent records its steps as spans, and computes the reward from the rank of the right document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from store.examples.doc_search.bm25f import Ranking, Searcher
from store.examples.doc_search.corpus import split_words
from store.examples.doc_search.library import Library
from store.models import NamedResources, PromptTemplate, Rollout
from store.training.running.agent import LitAgent
from store.training.tracing.emitters import emit_annotation, emit_message, emit_reward

if TYPE_CHECKING:
    from pathlib import Path

    from store.training.running.agent import AgentRunner

RESULTS = 10
"""The maximum number of results of a query. The reward is 0 if the right document is not among the results."""
RANKING = "ranking"
"""The name of the ranking among a rollout's resources."""

_SEARCHERS_KEPT = 4


class SearchAgent(LitAgent[Any]):
    """A search engine over one library, which consists of documents and queries about them.

    Args:
        library: the file of the library. Each process reads the file once, when a runner gets the agent.
    """

    def __init__(self, library: Path) -> None:
        super().__init__()
        self._path = library
        self._library: Library | None = None
        self._searchers: dict[Ranking, Searcher] = {}

    def set_runner(self, runner: AgentRunner) -> None:
        """Read the library before the first query.

        Raises:
            OSError: the file does not exist or cannot be read.
            ValueError: the file is not a library.
        """
        super().set_runner(runner)
        self._library = self._library or Library.load(self._path)

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Search for a query, and record the reward: 1/rank of the right document, or 0 if no result is right.

        Args:
            task: the `query`, the number of the right `document`, and the `name` of this document. The name must equal
                the document's name in the library.
            resources: the resources of the rollout, which contain the ranking as the text of a prompt.
            rollout: not used.

        Raises:
            LookupError: the document has another name in the library, because the library was built from another
                Python; or the resources contain no ranking.
        """
        del rollout
        ranking, library = _ranking(resources), self._library
        assert library is not None  # `set_runner` has read it
        names, document, trace = library.names, task["document"], self.tracer
        with trace.operation_context("index", {"index.documents": len(names)}):
            if not 0 <= document < len(names) or names[document] != task["name"]:
                raise LookupError(f"document {document} of this Python's standard library is not {task['name']}")
            searcher = self._searcher(library, ranking)
        with trace.operation_context("retrieve") as step:
            words = split_words(task["query"])
            scores = searcher.retrieve(words, RESULTS)
            step.record_attributes({"retrieve.words": words, "retrieve.documents": len(scores)})
        with trace.operation_context("rank") as step:
            ranked = searcher.rank(scores, RESULTS)
            results = [number for number, _ in ranked]
            step.record_attributes({"rank.scores": [score for _, score in ranked]})
        emit_message("\n".join(names[number] for number in results), {"query": task["query"]})
        rank = results.index(document) + 1 if document in results else 0
        if not rank and document in scores:
            # The index found the document, but the ranking placed the document too low.
            emit_annotation({"near_miss": {"score": scores[document], "needed": ranked[-1][1]}})
        emit_reward(1 / rank if rank else 0.0, attributes={"rank": rank})

    def _searcher(self, library: Library, ranking: Ranking) -> Searcher:
        searcher = self._searchers.get(ranking)
        if searcher is None:
            searcher = self._searchers.setdefault(ranking, Searcher(library.index, ranking))
            # The agent may run in several threads, so another thread may already have removed the oldest entry.
            for oldest in list(self._searchers)[:-_SEARCHERS_KEPT]:
                self._searchers.pop(oldest, None)
        return searcher


def _ranking(resources: NamedResources) -> Ranking:
    match resources.get(RANKING):
        case PromptTemplate(template=text):
            return Ranking.from_json(text)
        case _:
            raise LookupError(f"the resources {sorted(resources)} contain no {RANKING}")


def as_resource(ranking: Ranking) -> NamedResources:
    """Return resources that contain a ranking as the text of a prompt, because resources must be models or prompts."""
    return {RANKING: PromptTemplate(template=ranking.to_json(), engine="f-string")}
