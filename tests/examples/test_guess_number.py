"""The parts of the guessing game that need no PyTorch: game, tokens, advantages, report and chart."""

from __future__ import annotations

import asyncio
import itertools
import re
import statistics
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import Invalid
from store.examples.guess_number import report
from store.examples.guess_number.chart import draw
from store.examples.guess_number.course import (
    QUICK,
    TRANSFORMER,
    WHOLE,
    Course,
    Exam,
    StepResult,
    at_first,
    at_last,
    gain,
)
from store.examples.guess_number.game import BEGIN, FOUND, SMALL, Game, Verdict
from store.examples.guess_number.grpo import advantages
from store.examples.guess_number.policy import WIDTH, Sampled
from store.examples.guess_number.server import PolicyServer
from tests.examples.guessing import MODEL, Halving

SVG = "{http://www.w3.org/2000/svg}"


def play(game: Game, secret: int) -> list[str]:
    """Return what was said in a game that is played as well as one can."""
    turns: list[tuple[str, Verdict]] = []
    for _ in range(game.guesses):
        (sampled,) = Halving(game).sample([game.tokens(game.messages(turns))], [0.0])
        told = game.judge(secret, game.words[sampled.token])
        assert told is not None
        turns.append((game.words[sampled.token], told))
        if told == FOUND:
            break
    return list(itertools.chain(*turns))


def step(number: int, reward: float) -> StepResult:
    """Return a step of which only that is known."""
    return StepResult(number, reward, games=10, failed=0, calls=20, entropy=1.0, first_games={})


@pytest.mark.parametrize("game", [Game(), SMALL], ids=["whole", "small"])
def test_halving_finds_every_secret_in_the_guesses_there_are(game: Game) -> None:
    games = [play(game, secret) for secret in range(1, game.numbers + 1)]
    assert {said[-1] for said in games} == {FOUND}
    assert game.by_halving == 1.0
    assert max(len(said) for said in games) == 2 * game.guesses == game.longest_prompt + 1


def test_baseline_of_luck_equals_guesses_without_hints() -> None:
    game = Game()
    hits = [secret in {1, 2, 3, 4} for secret in range(1, 16)]
    assert game.by_luck == statistics.fmean(hits)


@pytest.mark.parametrize("said", ["higher", "lower", "begin", "0", "16", "", "07", "seven"])
def test_text_that_is_not_a_number_of_the_game_has_no_judgement(said: str) -> None:
    assert Game().judge(7, said) is None


def test_judge_returns_the_direction_of_the_secret() -> None:
    assert [Game().judge(7, said) for said in ("6", "7", "8")] == ["higher", "found", "lower"]


def test_the_words_of_the_whole_game_are_eighteen_and_tokens_are_their_places() -> None:
    game = Game()
    assert len(game.words) == 18
    chat = game.messages([("8", "lower"), ("4", "higher")])
    assert [game.words[token] for token in game.tokens(chat)] == ["begin", "8", "lower", "4", "higher"]
    assert game.tokens(chat)[0] == BEGIN


@pytest.mark.parametrize("message", [{"content": "hello"}, {"role": "user"}, "8", None])
def test_a_chat_about_something_else_is_refused(message: object) -> None:
    with pytest.raises(Invalid, match="say one of higher, lower, 1"):
        Game().tokens([{"content": "anything"}, message])


def test_an_advantage_is_the_distance_from_the_mean_of_its_group_in_standard_deviations() -> None:
    rewards = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 1.0, "f": 1.0}
    values = advantages(rewards, dict.fromkeys("abcd", "1") | dict.fromkeys("ef", "2"))
    assert [round(values[name], 3) for name in "abcd"] == [1.5, -0.5, -0.5, -0.5]
    assert (values["e"], values["f"]) == (0.0, 0.0), "a group that agrees has nothing to say"


@given(st.dictionaries(st.text(), st.tuples(st.floats(0, 1), st.sampled_from("xyz"))))
def test_the_advantages_of_a_group_are_bounded_and_add_up_to_nothing(games: dict[str, tuple[float, str]]) -> None:
    values = advantages({name: reward for name, (reward, _) in games.items()}, {n: g for n, (_, g) in games.items()})
    assert values.keys() == games.keys()
    for group in "xyz":
        members = [values[name] for name, (_, of) in games.items() if of == group]
        assert abs(sum(members)) < 1e-6
        assert all(abs(value) <= len(members) ** 0.5 for value in members)


def test_learning_requires_both_a_gain_and_a_level() -> None:
    course = Course(least=0.4, least_gain=0.2)
    rising = [step(number, reward) for number, reward in enumerate([0.1, 0.2, 0.3, 0.9, 0.5, 0.5, 0.5, 0.5, 0.5])]
    assert (at_first(rising), at_last(rising)) == (pytest.approx(0.2), 0.5)
    assert course.is_learned(rising)
    assert report.shortfall(rising, course) is None
    assert not Course(least=0.5, least_gain=0.2).is_learned(rising), "not more than the level"
    assert not Course(least=0.4, least_gain=0.31).is_learned(rising), "not gained enough"
    lacking = report.shortfall(rising, Course(least=0.6))
    assert lacking is not None
    assert (
        "found in 20 % of the first games and in 50 % of the last games. Required in the last games: more than 60 %"
        in (lacking)
    )


def test_an_exam_has_wilsons_interval_and_a_gain_has_newcombes() -> None:
    # Newcombe's own example (1998, II): 56 of 70 and 48 of 80, a difference of 0.2000 from 0.0524 to 0.3339.
    lower, upper = Exam(0, 80, 48 / 80), Exam(1, 70, 56 / 70)
    assert lower.interval == (pytest.approx(0.4905, abs=1e-4), pytest.approx(0.7004, abs=1e-4))
    assert gain(lower, upper) == tuple(pytest.approx(bound, abs=1e-4) for bound in (0.2, 0.0524, 0.3339))
    assert Exam(0, 10, 0.0).interval[0] == pytest.approx(0.0, abs=1e-12)
    assert Exam(0, 10, 1.0).interval[1] == pytest.approx(1.0)


def test_the_courses_demand_more_than_luck() -> None:
    for course in (WHOLE, QUICK, TRANSFORMER):
        assert course.least >= course.game.by_luck
        assert len(course.tasks) == course.game.numbers
    assert (WHOLE.steps * len(WHOLE.tasks) * WHOLE.samples, QUICK.steps * len(QUICK.tasks) * QUICK.samples) == (
        4_800,
        1_120,
    )


def test_the_chart_shows_every_step_at_its_height_and_reads_its_sentence_out() -> None:
    drawn = ET.fromstring(draw([0.0, 0.5, 1.0], [("a < b & c", 0.25)], "Up it went."))
    assert drawn.findtext(f"{SVG}title") == "Up it went."
    assert "a < b & c" in [text.text for text in drawn.iter(f"{SVG}text")]
    dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in drawn.iter(f"{SVG}circle")]
    (line,) = drawn.iter(f"{SVG}polyline")
    assert [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()] == dots
    (_, low), (_, middle), (_, high) = dots
    assert low > middle > high, "upwards is less in SVG"
    assert middle == (low + high) / 2
    texts = list(drawn.iter(f"{SVG}text"))
    heights = [float(text.attrib["y"]) for text in texts if text.text in {"Up it went.", "a < b & c"}]
    assert max(heights) < low


@pytest.mark.parametrize("steps", [1, 2, 40, 400])
def test_a_training_of_any_length_has_a_chart_whose_steps_are_counted_from_one(steps: int) -> None:
    drawn = ET.fromstring(draw([0.5] * steps, [], "Nothing happened."))
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"1", str(steps), "step"} <= set(texts)
    assert len(texts) < 100
    for dot in drawn.iter(f"{SVG}circle"):
        assert 0 < float(dot.attrib["cx"]) < 760


def test_documentation_matches_the_chart_and_the_settings() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = re.sub(r"\s+", " ", (docs / "training.md").read_text())
    title = ET.parse(docs / "guess-number.svg").findtext(f"{SVG}title")
    assert title is not None
    assert title in page
    game, learning = WHOLE.game, WHOLE.learning
    assert f"from 1 to {game.numbers} in {game.guesses} guesses" in page
    assert f"GRU of width {WIDTH} over {len(game.words)} words" in page
    assert f"each secret played {WHOLE.samples} times" in page
    told = f"{learning.clip}, {learning.passes} passes, entropy bonus {learning.entropy}, Adam {learning.rate}"
    assert f"clipped at {told}" in page
    small = f"(numbers to {QUICK.game.numbers} in {QUICK.game.guesses} guesses, {QUICK.steps} steps,"
    assert f"`--quick` {small}" in page


class Held(Halving):
    """Holds the first batch back until it is let go."""

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        self.go = threading.Event()
        self.sizes: list[int] = []

    def sample(self, prompts: Sequence[Sequence[int]], draws: Sequence[float]) -> list[Sampled]:
        assert self.go.wait(60)
        self.sizes.append(len(prompts))
        return super().sample(prompts, draws)


async def test_calls_that_arrive_while_a_batch_is_answered_are_the_next_batch() -> None:
    policy, sent = Held(SMALL), itertools.count(1)

    async def on_sent(*_: object) -> None:
        if next(sent) == 30:
            policy.go.set()

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(on_sent)
    async with PolicyServer(SMALL) as server, aiohttp.ClientSession(trace_configs=[trace]) as http:
        server.serve(MODEL, policy)
        asked = {"model": MODEL, "messages": SMALL.messages([])}

        async def status() -> int:
            # Leaving the block releases the connection. One that is never released warns when it is deleted.
            async with http.post(f"{server.url}/v1/chat/completions", json=asked) as answer:
                return answer.status

        assert set(await asyncio.gather(*(status() for _ in range(30)))) == {200}
        assert (server.calls, server.batches) == (30, len(policy.sizes))
        assert max(policy.sizes) > 10


async def test_a_call_is_answered_with_its_tokens_and_their_log_probabilities() -> None:
    game = SMALL
    async with PolicyServer(game) as server, aiohttp.ClientSession() as http:
        server.serve(MODEL, Halving(game))

        async def ask(*turns: tuple[str, Verdict]) -> dict[str, Any]:
            asked = {"model": MODEL, "messages": game.messages(turns), "seed": 1}
            async with http.post(f"{server.url}/v1/chat/completions", json=asked) as answer:
                assert answer.status == 200
                return await answer.json()

        first = await ask()
        assert first["prompt_token_ids"] == [BEGIN]
        (choice,) = first["choices"]
        assert choice["message"] == {"role": "assistant", "content": "4"}
        assert choice["token_ids"] == [game.words.index("4")]
        (token,) = choice["logprobs"]["content"]
        assert (token["token"], token["logprob"]) == ("4", 0.0)
        second = await ask(("4", "higher"))
        assert second["prompt_token_ids"] == [BEGIN, game.words.index("4"), game.words.index("higher")]
        assert second["id"] != first["id"]
        assert server.calls == 2


async def test_a_call_of_another_version_or_of_nonsense_is_refused() -> None:
    async with PolicyServer(SMALL) as server, aiohttp.ClientSession() as http:
        server.serve("policy@1", Halving(SMALL))
        messages = SMALL.messages([])
        refused: list[tuple[Any, str]] = [
            ({"model": "policy@0", "messages": messages}, "'policy@0' is not served; policy@1 is"),
            ({"model": "policy@1", "messages": [*messages, {"role": "user", "content": "hi"}]}, "say one of"),
            ({"model": "policy@1"}, "model and messages"),
            ([], "model and messages"),
        ]
        for body, said in refused:
            async with http.post(f"{server.url}/v1/chat/completions", json=body) as answer:
                assert answer.status == 400
                assert said in (await answer.json())["error"]["message"]


@pytest.mark.slow
def test_without_pytorch_the_command_says_how_to_get_it_and_makes_nothing(tmp_path: Path) -> None:
    without = "import sys; sys.modules['torch'] = None; from store.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", without, "guess-number"], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu" in done.stderr
    assert list(tmp_path.iterdir()) == []
