"""The policy learns: its parts, and a complete small training with agents, proxy and store."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from store import open_store
from store.cli.app import app
from store.examples.guess_number.course import QUICK, Course
from store.examples.guess_number.game import BEGIN, SMALL
from store.examples.guess_number.job import FAILED, OK, run
from store.examples.guess_number.policy import Learner, Learning, Policy, torch
from store.interface.store import Store
from store.models import PromptTemplate, ProxyLLM, Rollout
from store.semconv import PLAN_KEY, STEP_KEY
from store.training import TracerTraceToTriplet, Trajectories, Triplet, find_final_reward, trajectories
from tests.cli.conftest import COMMAND, without_waits
from tests.conftest import SQLITE
from tests.examples.guessing import SHORT, train_shortly
from tests.faults import processes
from tests.torture import IS_TORTURE
from tests.training.training_helpers import until

# One process imports PyTorch, which takes a second.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("torch")]

WORDS = len(SMALL.words)
PROMPTS = [[BEGIN], [BEGIN, 6, 1], [BEGIN, 6, 1, 8, 2]]


@pytest.fixture(autouse=True, scope="module")
def pytorch() -> None:
    """An extra: without it there is nothing to test, unless whoever runs the tests has said that it must be there."""
    if find_spec("torch") is None:
        missing = "PyTorch is not installed: pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
        (pytest.fail if os.environ.get("ROLLBOOK_REQUIRE_TORCH") else pytest.skip)(missing)


def log_probs(policy: Policy, prompt: Sequence[int]) -> list[float]:
    """Return those of every word after a prompt."""
    lib = torch()
    with lib.no_grad():
        return policy.log_probs(lib.tensor([list(prompt)]), lib.ones(1, len(prompt))).tolist()[0]


def batch(policy: Policy, calls: Sequence[tuple[Sequence[int], int]]) -> Trajectories:
    """Return the rows of calls, each a prompt and the token that was chosen."""
    triplets = [
        Triplet(
            prompt={"token_ids": list(prompt)},
            response={"token_ids": [token], "logprobs": [log_probs(policy, prompt)[token]]},
            reward=0.0,
            metadata={},
        )
        for prompt, token in calls
    ]
    return trajectories(triplets, BEGIN, SMALL.longest_prompt, 1)


@pytest.mark.slow
def test_the_whole_games_policy_has_about_7500_weights() -> None:
    assert Policy(18).size == 7_506


@pytest.mark.slow
def test_a_prompt_in_a_batch_is_answered_as_it_is_alone() -> None:
    policy = Policy(WORDS, seed=1)
    together = policy.sample(PROMPTS, [0.3, 0.6, 0.9])
    alone = [policy.sample([prompt], [draw])[0] for prompt, draw in zip(PROMPTS, [0.3, 0.6, 0.9], strict=True)]
    for one, other, prompt in zip(together, alone, PROMPTS, strict=True):
        assert one.token == other.token
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-9)
        assert one.log_prob == pytest.approx(log_probs(policy, prompt)[one.token], abs=1e-9)


def test_words_are_drawn_as_often_as_they_are_probable() -> None:
    policy = Policy(WORDS, seed=2)
    draws = [(number + 0.5) / 1_000 for number in range(1_000)]
    drawn = Counter(sample.token for sample in policy.sample([[BEGIN, 4, 1]] * 1_000, draws))
    for token, log_prob in enumerate(log_probs(policy, [BEGIN, 4, 1])):
        assert drawn[token] == pytest.approx(1_000 * math.exp(log_prob), abs=1.01)


def test_weights_come_back_from_their_text_and_depend_on_the_seed_alone() -> None:
    policy = Policy(WORDS, seed=3)
    assert log_probs(Policy.from_text(WORDS, policy.to_text()), PROMPTS[2]) == log_probs(policy, PROMPTS[2])
    assert log_probs(Policy(WORDS, seed=3), PROMPTS[2]) == log_probs(policy, PROMPTS[2])
    assert log_probs(Policy(WORDS, seed=4), PROMPTS[2]) != log_probs(policy, PROMPTS[2])


@pytest.mark.slow
def test_learning_raises_the_probability_of_better_answers_only() -> None:
    policy = Policy(WORDS, seed=5)
    before = [log_probs(policy, prompt) for prompt in PROMPTS]
    rows = batch(policy, [(PROMPTS[0], 5), (PROMPTS[1], 7), (PROMPTS[2], 9)])
    entropy = Learner(policy, Learning(entropy=0.0)).learn(rows, [1.0, -1.0, 0.0])
    after = [log_probs(policy, prompt) for prompt in PROMPTS]
    assert after[0][5] > before[0][5]
    assert after[1][7] < before[1][7]
    assert 0 < entropy < math.log(WORDS)


def test_equal_rewards_do_not_change_the_policy() -> None:
    policy = Policy(WORDS, seed=6)
    before = policy.to_text()
    Learner(policy, Learning(entropy=0.0)).learn(batch(policy, [(PROMPTS[0], 5), (PROMPTS[1], 7)]), [0.0, 0.0])
    assert policy.to_text() == before


@pytest.mark.slow
def test_an_answer_that_has_become_much_more_probable_is_not_pushed_further() -> None:
    policy = Policy(WORDS, seed=7)
    rows = batch(policy, [(PROMPTS[0], 5)])
    Learner(policy, Learning(rate=0.05, passes=1, entropy=0.0)).learn(rows, [1.0])
    pushed = policy.to_text()
    assert log_probs(policy, PROMPTS[0])[5] > rows.old_log_probs[0][0] + math.log(1.2)
    Learner(policy, Learning(rate=0.05, passes=1, entropy=0.0)).learn(rows, [1.0])
    assert policy.to_text() == pushed, "the ratio is clipped"


async def rewards_by_step(store: Store) -> dict[int, list[float]]:
    """Return what the spans in a store say came of each game."""
    rewards: dict[int, list[float]] = defaultdict(list)
    for rollout in await store.query_rollouts():
        assert rollout.status == "succeeded"
        reward = find_final_reward(await store.query_spans(rollout.rollout_id, "latest"))
        assert reward is not None
        rewards[int((rollout.metadata or {})[STEP_KEY])].append(reward)
    return rewards


async def policy_of(store: Store, rollout: Rollout) -> tuple[str, Policy]:
    """Return what a game was played with, by name and as it is kept."""
    update = await store.get_resources_by_id(str(rollout.resources_id))
    assert update is not None
    llm, named = update.resources["policy"], update.resources["weights"]
    assert isinstance(llm, ProxyLLM)
    assert isinstance(named, PromptTemplate)
    stored = await store.get_resources_by_id(named.template)
    assert stored is not None
    weights = stored.resources["weights"]
    assert isinstance(weights, PromptTemplate)
    return llm.model, Policy.from_text(WORDS, weights.template)


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(600)
def test_a_policy_learns_from_random_by_playing_through_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # With three eighths of the games, the policy still reaches the gain that the whole course must reach.
    quick = QUICK if IS_TORTURE else replace(QUICK, steps=15, samples=4)
    monkeypatch.setattr("store.examples.guess_number.course.QUICK", quick)
    url, chart = f"sqlite:///{tmp_path / 'rollbook.db'}", tmp_path / "learned.svg"
    # The command runs in this process, which has imported PyTorch. The number of processes does not change the result.
    options = ["--quick", "--runners", "0", "--chart", str(chart), "--db", url]
    with pytest.raises(SystemExit) as ended:
        app(["guess-number", *options], prog_name="rollbook")
    printed = capsys.readouterr()
    assert ended.value.code == OK, printed.err
    said, games = printed.out.splitlines(), 7 * quick.samples
    beginning = "A policy of 6,986 weights, starting from random weights, was trained in "
    assert said[0].startswith(f"{beginning}{quick.steps} steps of {games} games ")
    assert said[0] in chart.read_text()
    assert printed.err.splitlines()[-1].startswith(f"step {quick.steps} of {quick.steps}: found in ")

    async def look() -> None:
        async with await open_store(url, create=False) as store:
            rewards = await rewards_by_step(store)
            means = [statistics.fmean(rewards[step]) for step in sorted(rewards)]
            assert [len(rewards[step]) for step in sorted(rewards)] == quick.steps * [games]
            assert statistics.fmean(means[-5:]) - statistics.fmean(means[:3]) >= 0.15 == QUICK.least_gain
            versions = await store.query_resources(resources_id_contains="/weights/")
            assert len(versions) == quick.steps + 1, "each version, and the last"
            assert len({str(version.resources) for version in versions}) == len(versions)
            assert (await store.log.verify()).ok

    asyncio.run(look())


@pytest.mark.slow
@pytest.mark.usefixtures("forked_parts")
@pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
def test_runners_in_processes_of_their_own_play_the_same_games_with_the_weights_that_are_kept(
    durable_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(durable_url, SHORT, runners=2, chart=tmp_path / "short.svg", quiet=True) == OK
    printed = capsys.readouterr()
    assert printed.err == ""
    games, told = printed.out.split("\n\n28 rollouts (0 failed), ")
    assert told.count("\n") == 4
    assert run("memory://", SHORT, runners=0, quiet=True) == OK
    assert capsys.readouterr().out.startswith(games)

    async def look() -> None:
        async with await open_store(durable_url) as store:
            assert await rewards_by_step(store) == {
                0: [pytest.approx(0, abs=1)] * 14,
                1: [pytest.approx(0, abs=1)] * 14,
            }
            # One of the two runners may have played all games before the other one started.
            assert 1 <= len(await store.query_workers()) <= 2
            for rollout in await store.query_rollouts(sort_by="start_time"):
                name, policy = await policy_of(store, rollout)
                assert name == f"policy@{(rollout.metadata or {})[STEP_KEY]}"
                triplets = TracerTraceToTriplet().adapt(await store.query_spans(rollout.rollout_id, "latest"))
                assert triplets
                for triplet in triplets:
                    prompt: list[int] = triplet.prompt["token_ids"]
                    token: int = triplet.response["token_ids"][0]
                    told: float = triplet.response["logprobs"][0]["logprob"]
                    assert told == pytest.approx(log_probs(policy, prompt)[token], abs=1e-9)
                    assert triplet.metadata["model_version"] == name

    asyncio.run(look())


@pytest.mark.slow
def test_training_that_fails_to_learn_is_reported_as_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    hard = Course(game=SMALL, steps=1, samples=2, least=0.99)
    assert run("memory://", hard, runners=0) == FAILED
    printed = capsys.readouterr()
    assert "14 rollouts (0 failed)" in printed.out
    assert "step 1 of 1: found in" in printed.err
    assert "not learned: the number was found in" in printed.err


@pytest.mark.slow
def test_interrupted_training_closes_attempts_and_keeps_finished_games(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rollbook.db'}"
    command = [*COMMAND, "guess-number", "--quick", "--runners", "0", "--db", url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as training:
        try:
            assert training.stderr is not None
            lines = without_waits(training.stderr)
            name = next(lines).removeprefix("run ").strip()
            assert next(lines).startswith("step  1 of 20")
            training.send_signal(signal.SIGINT)
            said = training.stderr.read()
            assert training.wait(60) == 130
        finally:
            training.kill()
    assert said.endswith(f"interrupted: finished games are kept; the same command with --run {name} continues\n")

    async def look() -> None:
        async with await open_store(url, create=False) as store:
            statuses = Counter(rollout.status for rollout in await store.query_rollouts())
            assert statuses["succeeded"] >= 56
            assert not statuses.keys() & {"preparing", "running"}

    asyncio.run(look())


@pytest.mark.slow
@pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
def test_killed_training_resumes_with_the_same_result(durable_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def kill_in_second_step() -> None:
        async with await open_store(durable_url) as store:
            with processes.running(train_shortly, (durable_url,)):

                async def is_in_second_step() -> bool:
                    return (await store.query_rollouts(status_in=["succeeded"], limit=0)).total > 14

                await until(is_in_second_step)

    asyncio.run(kill_in_second_step())
    assert run(durable_url, SHORT, name="killed", runners=0) == OK
    went_on = capsys.readouterr()
    assert run("memory://", SHORT, runners=0) == OK
    output = capsys.readouterr()
    # What was said in the last step, hints included, and how often the number was found in each.
    games = output.out.partition("\n\n28 rollouts (0 failed)")[0]
    assert went_on.out.startswith(games)
    assert _step_lines(went_on.err) == _step_lines(output.err)
    assert len(_step_lines(output.err)) == 2

    async def look() -> None:
        async with await open_store(durable_url) as store:
            played = Counter((rollout.metadata or {})[PLAN_KEY] for rollout in await store.query_rollouts())
            assert len(played) == 2 * 7 * 2
            assert set(played.values()) == {1}

    asyncio.run(look())


def _step_lines(progress: str) -> list[str]:
    """Return the lines of steps, without the seconds."""
    return [line.rpartition(", ")[0] for line in progress.splitlines() if line.startswith("step")]
