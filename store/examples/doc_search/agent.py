"""The agent: answers one query with one ranking, tells what it did, and rewards itself by where the right answer is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from store.examples.doc_search.bm25f import Ranking, Searcher
from store.examples.doc_search.corpus import split_words
from store.examples.doc_search.library import Library
from store.models import NamedResources, PromptTemplate, Rollout
from store.training.agent import LitAgent
from store.training.emit import emit_annotation, emit_message, emit_reward

if TYPE_CHECKING:
    from pathlib import Path

    from store.training.agent import AgentRunner

RESULTS = 10
"""How far down the list an answer still earns something."""
RANKING = "ranking"
"""Under which name the ranking to use stands among a rollout's resources."""

_SEARCHERS_KEPT = 4


class SearchAgent(LitAgent[Any]):
    """A search engine over one library. It keeps the last few rankings it was asked for ready to use.

    Args:
        library: the file that the library is in; each process reads it once, when a runner takes the agent.
    """

    def __init__(self, library: Path) -> None:
        super().__init__()
        self._path = library
        self._library: Library | None = None
        self._searchers: dict[Ranking, Searcher] = {}

    def set_runner(self, runner: AgentRunner) -> None:
        """Read the library, before the first query is asked.

        Raises:
            OSError: there is no such file, or it cannot be read.
            ValueError: it is not a library.
        """
        super().set_runner(runner)
        self._library = self._library or Library.load(self._path)

    def rollout(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Search for a query and reward the result: 1/rank of the document it is about, 0 beyond the tenth place.

        Args:
            task: the `query`, the number of the `document` that is the right answer, and its `name`, which must be the
                one this library has under that number.
            resources: the ranking, as the text of a prompt.
            rollout: not looked at.

        Raises:
            LookupError: this library's document of that number has another name: it was made from another Python; or
                there is no ranking.
        """
        del rollout
        ranking, library = _ranking(resources), self._library
        assert library is not None  # read when the runner took the agent
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
            found = [number for number, _ in ranked]
            step.record_attributes({"rank.scores": [score for _, score in ranked]})
        emit_message("\n".join(names[number] for number in found), {"query": task["query"]})
        rank = found.index(document) + 1 if document in found else 0
        if not rank and document in scores:
            # The words led to it, and the ranking is what failed.
            emit_annotation({"near_miss": {"score": scores[document], "needed": ranked[-1][1]}})
        emit_reward(1 / rank if rank else 0.0, attributes={"rank": rank})

    def _searcher(self, library: Library, ranking: Ranking) -> Searcher:
        searcher = self._searchers.get(ranking)
        if searcher is None:
            searcher = self._searchers.setdefault(ranking, Searcher(library.index, ranking))
            # Attempts are run in threads: another may have dropped the oldest at this moment.
            for oldest in list(self._searchers)[:-_SEARCHERS_KEPT]:
                self._searchers.pop(oldest, None)
        return searcher


def _ranking(resources: NamedResources) -> Ranking:
    match resources.get(RANKING):
        case PromptTemplate(template=text):
            return Ranking.from_json(text)
        case _:
            raise LookupError(f"the resources {sorted(resources)} hold no {RANKING}")


def as_resource(ranking: Ranking) -> NamedResources:
    """Return resources with a ranking. They hold models and prompts; it is neither, and travels as a prompt's text."""
    return {RANKING: PromptTemplate(template=ranking.to_json(), engine="f-string")}
