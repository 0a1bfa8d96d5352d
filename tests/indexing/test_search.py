"""Search: the language, scopes, filters, excerpts, pages, hostile texts, and removal of payload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, Table, Text

from store import Invalid, NotFound, Store, open_store
from store.db.dialect import Sql
from store.db.index_place import IndexSession
from store.db.url import with_partition
from store.domain.rows import row_maker
from store.indexing.index import Index, IndexedEvent
from store.indexing.search import searching
from store.indexing.search.index import SearchIndex
from store.indexing.search.lexicon import code_of, codes_in
from store.indexing.search.query_language import parse_query
from store.indexing.search.words import word_texts
from store.models import AttemptedRollout
from store.models.queries import RolloutQuery
from store.models.search import SearchPage
from store.operations import Redaction, RetentionPolicy, drop_partition, redact, remove_payload
from store.sql.store import SQLStore
from store.testing import ManualClock
from store.testing.samples import make_span
from tests.conftest import SQLITE
from tests.indexing.test_following import dialect_of, followed

SECRET = "zanzibar4711"


ON_SQLITE = pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
"""For texts and excerpts, which are made in Python. The other tests show the statements on both databases."""


def chat(*messages: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a call of a model, in our own convention."""
    attributes: dict[str, Any] = {"gen_ai.operation.name": "chat"}
    for index, message in enumerate(messages):
        attributes |= {f"gen_ai.prompt.{index}.{name}": value for name, value in message.items()}
    return attributes | {f"gen_ai.completion.0.{name}": value for name, value in answer.items()}


async def conversation(store: Store, text: str, *, status: str = "succeeded", **fields: Any) -> str:
    """Record a rollout with a call of a model and a tool; return its id."""
    rollout = await store.start_rollout({"question": f"input {text}"}, **fields)
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": f"please {text}"}
    first = chat(system, user, answer={"role": "assistant", "content": "I shall look."})
    second = chat(
        *(system, user, {"role": "assistant", "content": "I shall look."}),
        answer={"role": "assistant", "content": f"done with {text}"},
    )
    tool = {"gen_ai.tool.name": "bash", "gen_ai.tool.call.arguments": f'{{"command": "ls {text}"}}'}
    tool["gen_ai.tool.call.result"] = f"listing of {text}"
    for number, attributes in enumerate((first, tool, second), start=1):
        await store.add_span(make_span(rollout.attempt, number, attributes=attributes, span_id=f"{number:016x}"))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)  # pyright: ignore[reportArgumentType]
    return rollout.rollout_id


async def ids(store: Store, query: str, **arguments: Any) -> set[str]:
    return {result.rollout_id for result in (await store.log.search(query, **arguments)).results}


def marked(page: SearchPage) -> set[str]:
    return {hit.text[a:b] for result in page.results for hit in result.hits for a, b in hit.marks}


@pytest.fixture
async def filled(store: Store) -> tuple[Store, str, str]:
    return store, await conversation(store, "red fox-trot"), await conversation(store, "blue foxes", status="failed")


async def test_words_phrases_prefixes_and_negation_select_rollouts(filled: tuple[Store, str, str]) -> None:
    store, red, blue = filled
    assert await ids(store, "RED") == {red}
    assert await ids(store, "please") == {red, blue}
    assert await ids(store, "fox") == {red}
    assert await ids(store, "fox*") == {red, blue}
    assert await ids(store, '"please red"') == {red}
    assert await ids(store, '"red please"') == set()
    assert await ids(store, "fox-trot") == {red}
    assert await ids(store, "please -red") == {blue}
    assert await ids(store, "red listing") == {red}
    assert await ids(store, "red brief") == set()


async def test_scopes_select_texts_by_kind_role_and_tool(filled: tuple[Store, str, str]) -> None:
    store, red, blue = filled
    await store.annotations.annotate(red, "a remarkable note")
    for query, scopes in {
        "input:red": {"input"},
        "role:user:red": {"user"},
        "role:assistant:red": {"assistant"},
        "role:system": {"system"},
        "tool:bash:red": {"call", "result"},
        "tool:BASH:listing": {"result"},
        "note:remarkable": {"note"},
    }.items():
        page = await store.log.search(query)
        assert red in {result.rollout_id for result in page.results}, query
        assert {hit.scope for result in page.results for hit in result.hits} == scopes, query
    assert await ids(store, "tool:python") == set()
    assert await ids(store, "note: -role:user:blue") == {red}
    assert await ids(store, "tool:bash:blue role:user:blue") == {blue}
    assert await ids(store, "tool:bash:blue role:user:red") == set()
    # A text that two terms match is one excerpt.
    (result,) = (await store.log.search("listing -blue tool:bash:listing")).results
    assert [hit.scope for hit in result.hits] == ["result"]


async def test_errors_of_attempts_and_of_spans_are_found(store: Store) -> None:
    rollout = await store.start_rollout({"question": 1})
    event = {"name": "exception", "attributes": {"exception.type": "ValueError", "exception.message": "bad wolf"}}
    await store.add_span(make_span(rollout.attempt, 1, events=[event]))
    await store.update_attempt(
        rollout.rollout_id,
        rollout.attempt.attempt_id,
        status="failed",
        error={"type": "TimeoutError", "message": "too slow"},  # pyright: ignore[reportArgumentType]
    )
    assert await ids(store, "error:wolf") == {rollout.rollout_id}
    assert await ids(store, 'error:"too slow"') == {rollout.rollout_id}
    assert await ids(store, "error:TimeoutError") == {rollout.rollout_id}
    assert await ids(store, "error:brave") == set()


@ON_SQLITE
async def test_excerpts_mark_matches_as_ranges_and_name_their_span(filled: tuple[Store, str, str]) -> None:
    store, red, _ = filled
    page = await store.log.search("tool:bash:red")
    assert marked(page) == {"red"}
    (result,) = page.results
    assert {(hit.span_id, hit.sequence_id, hit.name) for hit in result.hits} == {(f"{2:016x}", 2, "bash")}
    page = await store.log.search('"red fox" tr*')
    assert marked(page) == {"red fox-trot"} or marked(page) == {"red fox", "trot"}
    assert page.results[0].rollout_id == red


async def test_repeated_message_is_one_text_of_its_rollout(filled: tuple[Store, str, str]) -> None:
    store, red, _ = filled
    rollout = await store.get_rollout_by_id(red)
    assert isinstance(rollout, AttemptedRollout)
    for number in (4, 5):
        # A search lets the index follow the log, so the next repetition is in a later step.
        page = await store.log.search("please", rollout_id=red)
        assert [(hit.scope, hit.sequence_id) for hit in page.results[0].hits] == [("user", 1)]
        attributes = chat({"role": "user", "content": "please red fox-trot"}, answer={"role": "assistant"})
        await store.add_span(make_span(rollout.attempt, number, attributes=attributes, span_id=f"{number:016x}"))


async def test_search_inside_one_rollout_has_its_texts_in_order(filled: tuple[Store, str, str]) -> None:
    store, red, _ = filled
    page = await store.log.search("red", rollout_id=red)
    assert [hit.scope for hit in page.results[0].hits] == ["input", "user", "call", "result", "assistant"]
    with pytest.raises(NotFound):
        await store.log.search("red", rollout_id="ro-missing")


@pytest.mark.parametrize("few_rollouts", [0, searching.FEW_ROLLOUTS])
async def test_filters_of_rollouts_restrict_a_search(
    filled: tuple[Store, str, str], few_rollouts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "FEW_ROLLOUTS", few_rollouts)
    store, red, blue = filled
    await store.annotations.annotate(red, add_labels=["good"])
    assert await ids(store, "please", rollouts=RolloutQuery(status_in=["failed"])) == {blue}
    assert await ids(store, "please", rollouts=RolloutQuery(label_in=["good"])) == {red}
    either = RolloutQuery(label_in=["good"], status_in=["failed"], filter_logic="or")
    assert await ids(store, "please", rollouts=either) == {red, blue}
    assert await ids(store, "please", rollouts=RolloutQuery(reward_min=0.5)) == set()


async def test_pages_contain_each_rollout_once_newest_first(store: Store) -> None:
    every = [await conversation(store, f"walk number{number}") for number in range(7)]
    pages, after = list[list[str]](), None
    while True:
        page = await store.log.search("walk", limit=3, after=after)
        pages.append([result.rollout_id for result in page.results])
        after = page.next
        if after is None:
            break
    assert [rollout_id for page in pages for rollout_id in page] == every[::-1]
    assert all(len(page) <= 3 for page in pages)


@pytest.mark.parametrize(
    "query,part",
    [
        ("", "is empty"),
        ("-red", "requires none"),
        ("a tols:bash", "character 3, 'tols:'"),
        ('one "two', "character 5"),
        ('on"e', "put a space before it"),
        ('"a"b', "put a space after the quote"),
        ("a -", "a word must follow the -"),
        ("...", "no letter"),
        ("a*b", "at the end of a word"),
        ("tool:", "write the name of a tool"),
        ("role:admin", "'admin' is an unknown role"),
        ("regex:", "write an expression"),
        ("a -regex:b", "cannot be excluded"),
        ("x" * 1001, "at most 1000"),
        (" ".join("a" * 33), "at most 32 terms"),
    ],
)
def test_malformed_query_names_the_place_and_the_cure(query: str, part: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_query(query)
    assert refused.value.field == "query"
    assert part in str(refused.value)


async def test_hostile_queries_and_texts_are_only_text(store: Store) -> None:
    hostile = "<script>alert('x')</script> \" OR 1=1; DROP TABLE x -- { } \\ \U0001f600 é 漢字仮名 ÀÉ"
    rollout_id = await conversation(store, hostile)
    for query in ("script", '"OR 1=1; DROP"', "é", "漢字", "仮", "'x'", "àé"):
        assert await ids(store, query) == {rollout_id}, query
    page = await store.log.search("script")
    assert any("<script>" in hit.text for hit in page.results[0].hits)
    for query in ("NEAR(a b)", "a AND", "{meta}", "§k1", "text\\:x", "(a | b) & !c", "'':*", "a:b"[:1] + "\u0000"):
        try:
            await store.log.search(query)
        except Invalid:
            continue


@ON_SQLITE
async def test_base64_and_images_are_not_found(store: Store) -> None:
    picture = "iVBORw0KGgo" + "QUJDRGVm0a" * 40
    parts = [{"type": "text", "content": "look here"}, {"type": "blob", "mime_type": "image/png", "content": picture}]
    import orjson

    attributes = {"gen_ai.input.messages": orjson.dumps([{"role": "user", "parts": parts}]).decode()}
    rollout = await store.start_rollout({"question": f"data:image/png;base64,{picture} {picture}"})
    await store.add_span(make_span(rollout.attempt, 1, attributes=attributes))
    assert await ids(store, "look") == {rollout.rollout_id}
    assert await ids(store, "iVBORw0KGgo*") == set()
    assert await ids(store, "QUJDRGVm0a*") == set()


@ON_SQLITE
async def test_regular_expression_is_a_second_step(filled: tuple[Store, str, str]) -> None:
    pytest.importorskip("re2")
    store, red, blue = filled
    assert await ids(store, "please", regex=r"re\w fox") == {red}
    assert await ids(store, r'regex:"blue f[a-z]+s"') == {blue}
    page = await store.log.search("please", regex=r"f[a-z]+s$")
    assert marked(page) == {"foxes"}
    assert page.texts_searched >= 2
    with pytest.raises(Invalid, match="RE2"):
        await store.log.search("please", regex="(unclosed")
    # An expression that takes exponential time in other engines.
    assert await ids(store, "please", regex="(a+)+$") == set()


async def test_lag_is_reported_when_the_index_cannot_follow(filled: tuple[Store, str, str], monkeypatch: Any) -> None:
    store, red, _ = filled
    assert (await store.log.search("red")).events_behind == 0

    async def locked(*_: object, **__: object) -> None:
        from store import Unavailable

        raise Unavailable("locked")

    monkeypatch.setattr("store.indexing.reading.catch_up", locked)
    await conversation(store, "red again")
    page = await store.log.search("red")
    assert page.events_behind > 0
    assert {result.rollout_id for result in page.results} == {red}


def test_words_are_equal_in_texts_and_queries() -> None:
    assert word_texts("Foo_bar-BAZ2 ÄÖ straße") == ["foo", "bar", "baz2", "äö", "strasse"]
    assert word_texts("漢字ab") == ["漢", "字", "ab"]


async def test_verify_finds_and_rebuild_repairs_a_changed_index(filled: tuple[Store, str, str]) -> None:
    store, red, blue = filled
    assert isinstance(store, SQLStore)
    await store.log.search("red")
    assert (await store.log.verify()).ok
    async with followed(store, SearchIndex()) as follower, follower.place.transaction() as session:
        await session.execute("DELETE FROM search_documents WHERE kind = 3")
    report = await store.log.verify()
    assert {(difference.check, difference.key) for difference in report.differences} == {
        ("index search", red),
        ("index search", blue),
    }
    await store.log.rebuild()
    assert (await store.log.verify()).ok
    assert await ids(store, "role:user:red") == {red}


def files_beside(url: str) -> list[Path]:
    path = Path(url.removeprefix("sqlite:///"))
    return [file for file in path.parent.iterdir() if file.name.startswith(path.name)]


async def test_redacted_text_leaves_the_index_and_its_file(durable_url: str, clock: ManualClock) -> None:
    async with await open_store(durable_url, clock=clock) as store:
        remaining = await conversation(store, "harmless words")
        secret = await conversation(store, f"{SECRET} and harmless")
        assert await ids(store, SECRET) == {secret}
        await redact(durable_url, secret, Redaction.of(everything=True, reason="requested"), clock=clock)
        assert isinstance(store, SQLStore)
        if durable_url.startswith("sqlite"):
            for file in files_beside(durable_url):
                content = file.read_bytes()
                assert SECRET.encode() not in content, file
                assert b"zanzibar" not in content, file
        assert await ids(store, SECRET) == set()
        assert await ids(store, "harmless") == {remaining}
        if durable_url.startswith("postgresql"):
            words = await words_of_lexicon(store)
            assert "harmless" in words
            assert not {word for word in words if "zanzibar" in word}
        assert (await store.log.verify()).ok
        async with followed(store, SearchIndex()) as follower:
            await follower.make_again()
        assert await ids(store, "harmless") == {remaining}


async def words_of_lexicon(store: SQLStore) -> set[str]:
    async with followed(store, SearchIndex()) as follower, follower.place.transaction() as session:
        rows = await session.fetch(Sql("SELECT word FROM search_lexicon", (), {}, None, row_maker(("word",))), {})
    return {row.word for row in rows}


async def test_words_with_codes_of_two_characters_are_searched_like_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.indexing.search.lexicon._SHORTEST", "0")
    monkeypatch.setattr("store.indexing.search.lexicon._SINGLES", 12)
    url = postgres_url
    async with await open_store(url) as store:
        red, blue = await conversation(store, "red fox-trot"), await conversation(store, "blue foxes")
        assert await ids(store, "fox*") == {red, blue}
        assert await ids(store, '"please red" tro*') == {red}
        assert await ids(store, "fox-tr*") == {red}
        assert await ids(store, "blue-tr*") == set()
        assert await ids(store, '"red please"') == set()
        assert await ids(store, "please -foxes") == {red}
        assert await ids(store, "tool:bash:blue") == {blue}
        await redact(url, blue, Redaction.of(everything=True, reason="requested"))
        assert isinstance(store, SQLStore)
        assert {"red", "trot"} <= await words_of_lexicon(store)
        assert not {"blue", "foxes"} & await words_of_lexicon(store)
        assert await ids(store, "fox*") == {red}


def test_codes_of_words_are_distinct_and_can_be_separated() -> None:
    numbers = [0, 61, 62, 49_052, 49_053, 49_054, 55_453, 39_000_000, 40_000_000, 2**31 - 1]
    codes = [code_of(number) for number in numbers]
    assert len(set(codes)) == len(codes)
    assert codes_in("".join(codes)) == set(codes)


async def test_index_of_the_earlier_format_is_made_again(store: Store) -> None:
    class Earlier(Index):
        """The first format of the index, without codes of words."""

        name, version, types = "search", 1, ()
        tables = (Table("search_documents", MetaData(), Column("vector", Text)),)

        async def fold(self, session: IndexSession, events: Sequence[IndexedEvent]) -> None:
            del session, events

    assert isinstance(store, SQLStore)
    rollout_id = await conversation(store, "red")
    async with followed(store, Earlier()) as follower:
        await follower.catch_up()
    assert await ids(store, "role:user:red") == {rollout_id}
    assert (await store.log.verify()).ok


async def test_removal_of_much_payload_makes_the_index_again(
    durable_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.indexing.search.index._MOST_SCANS", 0)
    async with await open_store(durable_url, clock=clock) as store:
        remaining = await conversation(store, "harmless words")
        secret = await conversation(store, f"{SECRET} and harmless")
        assert await ids(store, SECRET) == {secret}
        await redact(durable_url, secret, Redaction.of(everything=True, reason="requested"), clock=clock)
        if durable_url.startswith("sqlite"):
            assert all(b"zanzibar" not in file.read_bytes() for file in files_beside(durable_url))
        assert await ids(store, "harmless") == {remaining}


async def test_retention_of_one_span_keeps_repeated_texts_that_remain(durable_url: str, clock: ManualClock) -> None:
    async with await open_store(durable_url, clock=clock) as store:
        rollout_id = await conversation(store, "shared text")
        assert await ids(store, "role:user:shared") == {rollout_id}
        # The first span is redacted; the second call repeats its messages.
        choice = Redaction.of(span_id=f"{1:016x}", reason="requested")
        await redact(durable_url, rollout_id, choice, clock=clock)
        page = await store.log.search("role:user:shared")
        assert [hit.sequence_id for result in page.results for hit in result.hits] == [3]
        clock.advance(2 * 86_400)
        await remove_payload(durable_url, RetentionPolicy.of(older_than=86_400), apply=True, clock=clock)
        assert await ids(store, "role:user:shared") == set()


@ON_SQLITE
async def test_body_over_the_limit_is_left_out_and_blocks_nothing(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr("store.indexing.following.LARGEST_BODY", 20_000)
    small = await conversation(store, "pebble")
    rollout = await store.start_rollout({"question": "boulder " * 5_000})
    assert await ids(store, "pebble") == {small}
    assert await ids(store, "boulder") == set()
    assert (await store.log.search("boulder")).events_behind == 0
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")


@ON_SQLITE
async def test_long_text_is_found_beyond_its_first_part(store: Store) -> None:
    rollout = await store.start_rollout({"question": "filler " * 25_000 + "treasure at the end"})
    page = await store.log.search('"treasure at"')
    assert [result.rollout_id for result in page.results] == [rollout.rollout_id]
    assert marked(page) == {"treasure at"}


async def test_dialect_of_the_store_has_places_for_indexes(store: Store) -> None:
    from store.db.index_place import indexable

    assert indexable(dialect_of(store)).index_place("search").name == "search"


async def test_dropped_partition_leaves_no_index(durable_url: str) -> None:
    url = with_partition(durable_url, "second")
    async with await open_store(durable_url), await open_store(url) as store:
        await conversation(store, SECRET)
        assert await ids(store, SECRET)
    await drop_partition(durable_url, "second", confirm="second")
    if durable_url.startswith("sqlite"):
        directory = Path(durable_url.removeprefix("sqlite:///")).parent
        assert [file.name for file in directory.iterdir() if "second" in file.name] == []
    async with await open_store(url) as store:
        assert await ids(store, SECRET) == set()
