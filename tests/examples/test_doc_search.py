"""The search engine of the demo, its agent, its tuner, and the output of the demo."""

from __future__ import annotations

import io
import math
import random
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from store import open_store
from store.examples.doc_search.agent import RESULTS, SearchAgent, as_resource
from store.examples.doc_search.bm25f import Ranking, Searcher, WordIndex
from store.examples.doc_search.console import Paper, ShownProgress
from store.examples.doc_search.corpus import (
    FIELDS,
    Document,
    Query,
    choose_queries,
    read_documents,
    source_files,
    split_words,
)
from store.examples.doc_search.library import Library, open_library
from store.examples.doc_search.report import paired_gain
from store.examples.doc_search.tuner import BEST, CANDIDATES, Tuner
from store.models import AttemptedRollout, Span
from store.semconv import ANNOTATION_SPAN, MESSAGE_SPAN
from store.training import Runner, find_final_reward, get_message_value

PLAIN = Ranking.plain(len(FIELDS))
whole_library = pytest.mark.xdist_group("doc-search")
"""One process parses it, for these tests and those of the demo."""

SOURCE = '''
class HTTPServer:
    """Not a function."""

    def serve_forever(self, poll_interval=0.5, *rest, key: int, **others):
        """Handle one request at a time until shutdown.

        Polls for shutdown every so often.
        """
        # Consider using another file descriptor
        waiting = self.selectorFactory("short # no comment", key=poll_interval)  # trailing remark
        text = """a long string
        # that only looks like a comment
        """
        def inner_helper():
            """Nested functions are part of the body."""
        return waiting

try:
    def fallback(): "Do what can be done here"
except ImportError:
    async def other(): pass
'''


@pytest.fixture
def documents(tmp_path: Path) -> dict[str, Document]:
    """The documents of a made-up library of one module."""
    package = tmp_path / "web"
    package.mkdir()
    (package / "__init__.py").write_text("def top(): pass")
    (package / "server.py").write_text(SOURCE)
    (package / "broken.py").write_text("def (")
    for left_out in ("tests", "site-packages"):
        (package / left_out).mkdir()
        (package / left_out / "module.py").write_text("def unwanted(): pass")
    return {document.name: document for document in read_documents(source_files(tmp_path), tmp_path)}


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> Library:
    """This Python's own library, parsed once and kept in pytest's cache, where the tests of the demo find it too."""
    cache: pytest.Cache = request.config.cache  # pyright: ignore[reportAssignmentType]  None only without the plugin
    return open_library(cache.mkdir("doc-search") / "rollbook")[0]


@pytest.fixture
def tiny() -> Library:
    """Three documents that differ in one word, and one that shares nothing with them."""
    names = ["m.a", "m.b", "m.c", "m.d"]
    texts = [document(name="open file"), document(body="open file"), document(docstring="file"), document(name="x")]
    return Library(names, [Query("open the file", 1)], WordIndex.build(texts, len(FIELDS)))


def document(**texts: str) -> list[list[str]]:
    return [split_words(texts.get(field, "")) for field in FIELDS]


@pytest.mark.parametrize(
    "text, words",
    [
        ("HTTPServer.serve_forever", ["http", "server", "serve", "forever"]),
        ("readIntoBuffer2", ["read", "into", "buffer", "2"]),
        ("IOError: don't __init__", ["io", "error", "don", "t", "init"]),
        ("", []),
    ],
)
def test_words_are_split_at_underscores_and_in_camel_case(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_functions_and_methods_are_documents_but_not_tests_nested_functions_or_broken_files(
    documents: dict[str, Document],
) -> None:
    assert set(documents) == {
        "web.top",
        "web.server.HTTPServer.serve_forever",
        "web.server.fallback",
        "web.server.other",
    }


def test_a_document_holds_everything_its_function_says_but_the_summary(documents: dict[str, Document]) -> None:
    document = documents["web.server.HTTPServer.serve_forever"]
    said = {field: " ".join(words) for field, words in zip(FIELDS, document.words, strict=True)}
    assert document.summary == "Handle one request at a time until shutdown."
    assert said["name"] == "serve forever"
    assert said["class"] == "http server"
    assert said["module"] == "web server"
    assert said["arguments"] == "self poll interval key rest others"
    assert said["docstring"] == "polls for shutdown every so often"
    assert said["comments"] == "consider using another file descriptor trailing remark"
    assert "selector factory" in said["body"]
    assert "short no comment" in said["body"]
    assert "looks" not in said["body"]
    assert not any("handle" in words for words in document.words)


def test_a_query_is_a_summary_of_four_words_that_only_one_function_has() -> None:
    summaries = ["Close the open file.", "Do the same thing twice.", "Do the same thing twice.", "Too short.", ""]
    documents = [Document(f"m.f{number}", text, ()) for number, text in enumerate(summaries)]
    assert choose_queries(documents) == [Query("Close the open file.", 0)]


texts_of_documents = st.lists(
    st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), min_size=len(FIELDS), max_size=len(FIELDS)),
    min_size=1,
    max_size=40,
)
rankings = st.builds(
    Ranking,
    st.tuples(*[st.floats(0.01, 20) for _ in FIELDS]),
    st.floats(0.1, 5),
    st.floats(0, 1),
)


@given(texts_of_documents, rankings, st.lists(st.sampled_from("abcdefghz"), max_size=6), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
@pytest.mark.slow
def test_stopping_early_finds_the_same_results_as_scoring_everything(
    texts: list[list[list[str]]], ranking: Ranking, query: list[str], limit: int
) -> None:
    searcher = Searcher(WordIndex.build(texts, len(FIELDS)), ranking)
    best = searcher.rank(searcher.retrieve(query, limit), limit)
    expected = _scored_one_by_one(texts, ranking, query)[:limit]
    assert [score for _, score in best] == pytest.approx([score for _, score in expected])
    scores = dict(_scored_one_by_one(texts, ranking, query))
    assert [scores[number] for number, _ in best] == pytest.approx([score for _, score in best])


def _scored_one_by_one(texts: list[list[list[str]]], ranking: Ranking, query: list[str]) -> list[tuple[int, float]]:
    """BM25F straight from its definition."""
    average = [statistics.fmean(len(fields[place]) for fields in texts) or 1.0 for place in range(len(FIELDS))]
    scored: list[tuple[int, float]] = []
    for number, fields in enumerate(texts):
        score = 0.0
        for word in set(query):
            spread = sum(any(word in field for field in other) for other in texts)
            x = sum(
                weight * field.count(word) / (1 - ranking.b + ranking.b * len(field) / mean)
                for weight, field, mean in zip(ranking.weights, fields, average, strict=True)
                if field
            )
            score += math.log(1 + (len(texts) - spread + 0.5) / (spread + 0.5)) * x / (ranking.k1 + x)
        if score > 0:
            scored.append((number, score))
    return sorted(scored, key=lambda result: (-result[1], result[0]))


def test_of_two_documents_that_score_alike_the_lower_number_comes_first() -> None:
    searcher = Searcher(WordIndex.build([document(body="same")] * 3, len(FIELDS)), PLAIN)
    assert [number for number, _ in searcher.rank(searcher.retrieve(["same"]))] == [0, 1, 2]


def test_a_heavier_field_lifts_the_documents_that_match_in_it(tiny: Library) -> None:
    def first(**weights: float) -> int:
        ranking = Ranking(tuple(weights.get(field, 1.0) for field in FIELDS), 1.2, 0.75)
        searcher = Searcher(tiny.index, ranking)
        return searcher.rank(searcher.retrieve(["open", "file"]))[0][0]

    assert (first(name=9), first(body=9)) == (0, 1)


def test_a_ranking_survives_its_journey_as_text() -> None:
    ranking = Ranking((0.1, 1 / 3, 2e-5), 1.2, 0.75)
    assert Ranking.from_json(ranking.to_json()) == ranking


def test_a_saved_library_comes_back_as_it_was(tiny: Library, tmp_path: Path) -> None:
    tiny.save(tmp_path / "library")
    assert Library.load(tmp_path / "library") == tiny
    assert [path.name for path in tmp_path.iterdir()] == ["library"]


DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda data: data[:-3],
    lambda data: b"[" + data,
    lambda data: data.replace(b'"form": 1', b'"form": 0'),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=["cut off", "not JSON", "another form"])
def test_a_damaged_library_is_refused(tiny: Library, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "library"
    tiny.save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"library|JSON|Expecting"):
        Library.load(path)


def test_a_library_is_parsed_once_and_again_when_its_file_is_damaged_or_a_source_changed(tmp_path: Path) -> None:
    root, cache, parsed = tmp_path / "sources", tmp_path / "cache", list[int]()
    root.mkdir()
    (root / "server.py").write_text(SOURCE)

    def opened(time: int) -> tuple[Library, Path]:
        return open_library(cache, root=root, on_reading=lambda: parsed.append(time))

    first, path = opened(1)
    assert (opened(2), parsed) == ((first, path), [1])
    path.write_bytes(path.read_bytes()[:-1])
    assert (opened(3), parsed) == ((first, path), [1, 3])
    (root / "client.py").write_text(SOURCE)
    changed, other_path = opened(4)
    assert parsed == [1, 3, 4]
    assert other_path != path
    assert len(changed.names) == 2 * len(first.names)


def test_the_tuner_proposes_the_same_rankings_for_the_same_seed() -> None:
    assert Tuner(PLAIN, 7).propose() == Tuner(PLAIN, 7).propose()
    assert Tuner(PLAIN, 7).propose() != Tuner(PLAIN, 8).propose()


def test_the_next_centre_is_the_geometric_mean_of_the_best_three() -> None:
    tuner = Tuner(PLAIN, 0)
    tried = tuner.propose()
    rewards = [0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.0]
    assert len(tried) == CANDIDATES == len(rewards)
    tuner.learn(tried, rewards)
    best = [tried[place] for place in (1, 3, 5)]
    assert len(best) == BEST
    assert tuner.centre.k1 == pytest.approx(statistics.geometric_mean(ranking.k1 for ranking in best))
    for place, weight in enumerate(tuner.centre.weights):
        assert weight == pytest.approx(statistics.geometric_mean(ranking.weights[place] for ranking in best))


def test_the_steps_of_the_tuner_become_shorter_and_b_stays_a_share() -> None:
    tuner = Tuner(PLAIN, 0)
    spreads: list[float] = []
    for _ in range(12):
        tried = [ranking for _ in range(20) for ranking in tuner.propose()]
        spreads.append(statistics.stdev(math.log(ranking.k1) for ranking in tried))
        assert all(0 < ranking.b <= 1 for ranking in tried)
        tuner.learn(tried, [0.0] * len(tried))
    assert spreads[-1] < 0.3 * spreads[0]


@whole_library
@pytest.mark.slow
def test_tuning_beats_the_plain_ranking_on_queries_it_never_saw(library: Library) -> None:
    rng = random.Random(0)
    queries = rng.sample(library.queries, 2_000)
    training, held_out = queries[:1_500], queries[1_500:]
    tuner = Tuner(PLAIN, 0)
    for _ in range(4):
        asked = rng.sample(training, 40)
        tried = tuner.propose()
        tuner.learn(tried, [statistics.fmean(_rewards(library, ranking, asked)) for ranking in tried])
    gain = paired_gain(_rewards(library, PLAIN, held_out), _rewards(library, tuner.centre, held_out))
    assert gain.low > 0


def _rewards(library: Library, ranking: Ranking, queries: list[Query]) -> list[float]:
    searcher = Searcher(library.index, ranking)
    rewards: list[float] = []
    for query in queries:
        numbers = [number for number, _ in searcher.rank(searcher.retrieve(split_words(query.text), RESULTS), RESULTS)]
        rewards.append(1 / (numbers.index(query.answer) + 1) if query.answer in numbers else 0.0)
    return rewards


@pytest.fixture
def answer(tmp_path: Path) -> Callable[[Library, Any], Awaitable[tuple[AttemptedRollout, list[Span]]]]:
    """A function that has the agent answer a query from a library, and returns its rollout and spans."""

    async def answer(library: Library, task: Any) -> tuple[AttemptedRollout, list[Span]]:
        library.save(tmp_path / "library")
        runner = Runner[Any](max_rollouts=1)
        async with await open_store("memory://") as store:
            await store.add_resources(as_resource(PLAIN))
            await store.enqueue_rollout(task)
            with runner.run_context(agent=SearchAgent(tmp_path / "library"), store=store, worker_id=0):
                await runner.iter()
            (rollout,) = await store.query_rollouts()
            assert isinstance(rollout, AttemptedRollout)
            return rollout, list(await store.query_spans(rollout.rollout_id))

    return answer


async def test_an_answer_is_three_steps_a_message_and_the_reciprocal_rank(
    tiny: Library, answer: Callable[[Library, Any], Awaitable[tuple[AttemptedRollout, list[Span]]]]
) -> None:
    rollout, spans = await answer(tiny, {"query": "open the file", "document": 1, "name": "m.b"})
    assert rollout.status == "succeeded"
    *_, message, reward, root = spans
    assert [span.name for span in spans[:3]] == ["index", "retrieve", "rank"]
    assert (message.name, reward.name, root.name) == (MESSAGE_SPAN, ANNOTATION_SPAN, "agentlightning.attempt")
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert {span.status.status_code for span in spans} <= {"OK", "UNSET"}
    assert get_message_value(message) == "m.a\nm.b\nm.c"
    assert (find_final_reward(spans), reward.attributes["rank"]) == (0.5, 2)


async def test_an_answer_beyond_the_tenth_place_earns_nothing_and_says_by_how_little(
    answer: Callable[[Library, Any], Awaitable[tuple[AttemptedRollout, list[Span]]]],
) -> None:
    count = RESULTS + 2
    library = Library(
        [f"m.f{number}" for number in range(count)], [], WordIndex.build([document(body="same")] * count, len(FIELDS))
    )
    rewards: list[float | None] = []
    for number in (0, RESULTS - 1, RESULTS):
        _, spans = await answer(library, {"query": "same", "document": number, "name": f"m.f{number}"})
        rewards.append(find_final_reward(spans))
    assert rewards == [1.0, 1 / RESULTS, 0.0]
    (near_miss,) = [span for span in spans if "near_miss.score" in span.attributes]
    assert near_miss.attributes["near_miss.score"] == near_miss.attributes["near_miss.needed"]


@pytest.mark.parametrize("number", [0, 4, -1])
async def test_a_query_about_another_library_fails_and_its_span_says_why(
    tiny: Library, answer: Callable[[Library, Any], Awaitable[tuple[AttemptedRollout, list[Span]]]], number: int
) -> None:
    rollout, spans = await answer(tiny, {"query": "open the file", "document": number, "name": "m.b"})
    assert rollout.status == "failed"
    assert (spans[0].name, spans[0].status.status_code) == ("index", "ERROR")
    assert "is not m.b" in str(spans[0].status.description)


def test_a_paired_gain_is_surer_than_its_two_sides() -> None:
    rng = random.Random(1)
    before = [rng.random() for _ in range(400)]
    after = [value + 0.05 + rng.gauss(0, 0.01) for value in before]
    gain = paired_gain(before, after)
    assert gain.mean == pytest.approx(0.05, abs=0.002)
    assert 0.045 < gain.low < gain.mean < gain.high < 0.055
    assert paired_gain(before, before) == paired_gain(after, after)
    assert paired_gain(before, before).high == 0


def test_a_table_is_drawn_on_a_terminal_and_tab_separated_in_a_pipe() -> None:
    tables: list[str] = []
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, color_system=None, width=40, markup=False)
        paper = Paper(console)
        paper.heading("A heading [that is] no markup")
        paper.table(("name", "count"), [("rollouts", "12")])
        paper.line("word " * 20)
        assert isinstance(console.file, io.StringIO)
        tables.append(console.file.getvalue())
    assert "rollouts  12" in tables[0]
    assert "rollouts\t12\n" in tables[1]
    assert all("[that is]" in text for text in tables)
    assert max(map(len, tables[0].splitlines())) <= 40
    assert "word " * 19 in tables[1]


@pytest.mark.parametrize("quiet, lines", [(False, ["something happened", "part: done"]), (True, [])])
def test_progress_is_lines_in_a_pipe_and_nothing_when_quiet(quiet: bool, lines: list[str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    progress = ShownProgress(console, quiet=quiet)
    progress.begin("part", 2)
    progress.advance(2)
    progress.say("something happened")
    progress.end("done")
    progress.close()
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == lines


@pytest.mark.skipif(sys.platform == "win32", reason="paths differ")
@whole_library
@pytest.mark.slow
def test_only_functions_of_the_standard_library_are_documents(library: Library) -> None:
    assert "json.decoder.JSONDecoder.raw_decode" in library.names
    assert not any(name.startswith(("test.", "idlelib.", "site-packages.")) for name in library.names)
    assert len(library.queries) >= 2_000
