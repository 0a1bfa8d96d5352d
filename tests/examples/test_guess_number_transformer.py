"""A language model of Hugging Face learns the game by the same loop: tokens, weights and complete training."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from store import open_store
from store.adapters.data_proto import data_proto_fields
from store.errors import Invalid
from store.examples.guess_number.course import TRANSFORMER, Course, pretrained
from store.examples.guess_number.game import SMALL, Game
from store.examples.guess_number.inference import SERVED_MODEL
from store.examples.guess_number.job import FAILED, OK, run
from store.examples.guess_number.language_model import (
    LanguageModel,
    Pretrained,
    PretrainedModels,
    Transformer,
    TransformerModels,
    TransformersMissing,
    transformers,
)
from store.examples.guess_number.policy import torch
from store.examples.guess_number.server import PolicyServer
from store.models import PromptTemplate
from store.semconv import GROUP_KEY, PLAN_KEY, STEP_KEY
from store.training import TracerTraceToTriplet, trajectories
from tests.conftest import SQLITE

SHORT = replace(
    TRANSFORMER,
    steps=2,
    samples=2,
    examined=2,
    transformer=Transformer(width=16, layers=1, heads=2, lessons=8, games=4),
    least=-1.0,
    least_gain=-1.0,
)
# The course is this module's, so that it is the same in both processes.
_KILLED = (
    "from tests.examples.test_guess_number_transformer import *; run({url!r}, TRANSFORMER, name='killed', runners=0)"
)

pytestmark = [
    # The torch of this environment may warn of what its own parts use.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.xdist_group("torch"),
]


@pytest.fixture(autouse=True, scope="module")
def libraries() -> None:
    """Extras: without them there is nothing to test, unless whoever runs the tests has said that they must be there."""
    for name in ("torch", "transformers"):
        if find_spec(name) is None:
            missing = f"{name} is not installed: pip install 'rollbook[huggingface]'"
            (pytest.fail if os.environ.get("ROLLBOOK_REQUIRE_TORCH") else pytest.skip)(missing)


@pytest.fixture(scope="module")
def models(libraries: None) -> TransformerModels:
    assert SHORT.transformer is not None
    return TransformerModels(SMALL, SHORT.transformer)


def log_probs(model: LanguageModel, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
    """Return those of the tokens of an answer."""
    lib = torch()
    ids = lib.tensor([[*prompt, *answer]])
    with lib.no_grad():
        scores = model.following(ids[:, :-1], lib.ones_like(ids)[:, :-1], len(answer))
    return [float(scores[0, place, token]) for place, token in enumerate(answer)]


@pytest.mark.slow
def test_a_number_is_its_digits_and_an_end_and_comes_back_as_text(models: TransformerModels) -> None:
    assert Game().numbers == 15
    words = TransformerModels(Game(), Transformer()).vocabulary
    assert (words.longest_answer, len(words.answer("12"))) == (3, 3)
    assert words.answer("12")[-1] == words.end != words.pad
    assert [words.text(words.answer(str(number))) for number in range(1, 16)] == [str(n) for n in range(1, 16)]
    chat = Game().messages([("12", "lower"), ("4", "higher"), ("6", "higher")])
    assert words.tokenizer.unk_token_id not in words.tokens(chat)
    assert len(words.tokens(chat)) <= words.longest_prompt
    # A prompt goes on where the one before it, and its answer, ended.
    first = words.tokens(chat[:1]) + words.answer("12")
    assert words.tokens(chat[:3])[: len(first)] == first
    with pytest.raises(Invalid, match="need a role and a content each"):
        words.tokens([{"content": "hello"}])


@pytest.mark.slow
def test_weights_come_back_from_their_text_and_depend_on_the_seed_alone(models: TransformerModels) -> None:
    prompt = models.vocabulary.tokens(SMALL.messages([("4", "higher")]))
    answer = models.vocabulary.answer("6")
    model = models.create(1)
    expected = log_probs(model, prompt, answer)
    assert log_probs(models.load(models.save(model, "any")), prompt, answer) == expected
    assert log_probs(models.create(1), prompt, answer) == expected
    assert log_probs(models.create(2), prompt, answer) != expected
    assert SHORT.transformer is not None
    untaught = TransformerModels(SMALL, replace(SHORT.transformer, lessons=0)).create(1)
    assert sum(expected) > sum(log_probs(untaught, prompt, answer)), "lessons show what an answer looks like"


@pytest.mark.slow
def test_a_prompt_in_a_batch_is_answered_as_it_is_alone(models: TransformerModels) -> None:
    model = models.create(3)
    chats = [SMALL.messages([]), SMALL.messages([("4", "lower"), ("2", "higher")])]
    prompts = [models.vocabulary.tokens(chat) for chat in chats]
    together = model.sample(prompts, [0.3, 0.7])
    for prompt, draw, sampled in zip(prompts, [0.3, 0.7], together, strict=True):
        (alone,) = model.sample([prompt], [draw])
        assert alone.token == sampled.token
        assert alone.log_prob == pytest.approx(sampled.log_prob, abs=1e-9)
        assert sampled.log_prob == pytest.approx(log_probs(model, prompt, [sampled.token])[0], abs=1e-8)


@pytest.mark.slow
def test_without_transformers_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TransformersMissing, match=re.escape("pip install 'rollbook[huggingface]'")):
        transformers()
    assert run("memory://", SHORT, runners=0) == FAILED
    assert "pip install 'rollbook[huggingface]'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("durable_url", [SQLITE], indirect=True)
def test_a_run_goes_on_and_its_rows_are_those_of_the_weights_that_are_kept(
    durable_url: str, capsys: pytest.CaptureFixture[str], models: TransformerModels
) -> None:
    assert run(durable_url, replace(SHORT, steps=1), name="stopped", runners=0, quiet=True) == OK
    capsys.readouterr()
    assert run(durable_url, SHORT, name="stopped", runners=0, quiet=True) == OK
    went_on = capsys.readouterr().out
    assert run("memory://", SHORT, runners=0, quiet=True) == OK
    # What was said, what came of it, and the exams: all that depends on the weights.
    assert went_on.partition("\n\n28 rollouts (0 failed)")[0] == capsys.readouterr().out.partition("\n\n28 rollouts")[0]
    assert re.search(r"^policy@2 in 14 games .* reward 0\.\d+, 95 % interval 0\.\d+ to 0\.\d+$", went_on, re.MULTILINE)

    async def look() -> None:
        async with await open_store(durable_url) as store:
            rollouts = await store.query_rollouts()
            assert set(Counter((rollout.metadata or {})[PLAN_KEY] for rollout in rollouts).values()) == {1}
            # The run that stopped had its last exam after one step.
            assert Counter(rollout.mode for rollout in rollouts) == {"train": 28, "val": 42}
            stored = await store.get_resources_by_id("stopped/weights/1")
            assert stored is not None
            weights = stored.resources["weights"]
            assert isinstance(weights, PromptTemplate)
            model = models.load(weights.template)
            of_step = [
                rollout for rollout in rollouts if (rollout.metadata or {})[STEP_KEY] == 1 and rollout.mode == "train"
            ]
            spans = [await store.query_spans(rollout.rollout_id, "latest") for rollout in of_step]
            triplets = [
                triplet for one in spans for triplet in TracerTraceToTriplet(reward_match="broadcast").adapt(one)
            ]
            words = models.vocabulary
            rows = trajectories(triplets, words.pad, words.longest_prompt, words.longest_answer)
            groups = {rollout.rollout_id: str((rollout.metadata or {})[GROUP_KEY]) for rollout in of_step}
            fields = data_proto_fields(rows, triplets, data_ids=groups)
            assert len(rows) == len(triplets) >= 14
            assert len(set(fields.non_tensor_batch["uid"])) == 7
            for place, triplet in enumerate(triplets):
                answer: list[int] = triplet.response["token_ids"]
                expected = log_probs(model, triplet.prompt["token_ids"], answer)
                recorded = fields.batch["rollout_log_probs"][place][: len(answer)]
                assert recorded.tolist() == pytest.approx(expected, abs=1e-6)
                assert triplet.metadata["model_version"] == "policy@1"

    asyncio.run(look())


@pytest.mark.torture_only
def test_a_language_model_learns_although_it_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'rollbook.db'}"
    command = [sys.executable, "-c", _KILLED.format(url=url)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as training:
        try:
            assert training.stderr is not None
            for line in training.stderr:
                if line.startswith("step 12 of 40"):
                    break
        finally:
            training.kill()
    assert run(url, TRANSFORMER, name="killed", runners=0, quiet=True) == OK
    printed = capsys.readouterr().out
    print(printed)
    (lower,) = re.findall(r"^gain: [\d.]+, 95 % interval ([-\d.]+) to", printed, re.MULTILINE)
    assert float(lower) >= TRANSFORMER.least_gain


def saved(models: TransformerModels, directory: Path, *, tied: bool = True) -> str:
    """Write a model as one that was downloaded, and return its directory."""
    path, module = directory / "model", models.create(0).module.float()
    if not tied:
        module.config.tie_word_embeddings = False
        module.lm_head.weight = torch().nn.Parameter(module.lm_head.weight.detach().clone())
    module.save_pretrained(path)
    models.vocabulary.tokenizer.save_pretrained(path)
    return str(path)


def one_step(model: str, checkpoints: Path, vllm: str | None = None) -> Course:
    course = pretrained(model, checkpoints, vllm)
    # A rate at which one step changes the few weights, in parts of a few rows.
    learning = replace(course.learning, rate=0.01, entropy=0.01)
    return replace(course, game=SMALL, steps=1, samples=2, examined=1, least=-1.0, least_gain=-1.0, learning=learning)


@pytest.mark.slow
def test_the_versions_of_a_model_of_a_directory_are_directories(
    models: TransformerModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, checkpoints = saved(models, tmp_path), tmp_path / "checkpoints"
    # A process was killed while it wrote.
    (checkpoints / "of-a-directory/weights/1.new").mkdir(parents=True)
    assert run("memory://", one_step(model, checkpoints), name="of-a-directory", runners=0, quiet=True) == OK
    assert "starting from its pretrained weights" in capsys.readouterr().out
    assert sorted(path.name for path in (checkpoints / "of-a-directory/weights").iterdir()) == ["0", "1"]
    loaded = PretrainedModels(SMALL, Pretrained(model, checkpoints))
    prompt, answer = models.vocabulary.tokens(SMALL.messages([])), models.vocabulary.answer("4")
    assert loaded.vocabulary.tokens(SMALL.messages([])) == prompt
    first, later = (
        log_probs(loaded.load(str(checkpoints / f"of-a-directory/weights/{version}")), prompt, answer)
        for version in (0, 1)
    )
    assert first == log_probs(loaded.create(0), prompt, answer)
    assert first != later


@pytest.mark.slow
def test_a_directory_without_a_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert run("memory://", one_step(str(tmp_path / "empty"), tmp_path / "checkpoints"), runners=0) == FAILED
    assert "empty is no model that transformers can load" in capsys.readouterr().err


@asynccontextmanager
async def vllm(models: PretrainedModels, requests: list[tuple[str, Any]]) -> AsyncGenerator[str]:
    """Serve as vLLM does: it loads the weights of a directory, and completes chats with token ids if asked for them."""
    async with PolicyServer(models.vocabulary) as policy, aiohttp.ClientSession() as http:

        async def load(request: web.Request) -> web.Response:
            body = await request.json()
            requests.append((request.path, body))
            policy.serve(SERVED_MODEL, models.load(body["kwargs"]["weights_path"]))
            return web.json_response({"results": [None]})

        async def reset(request: web.Request) -> web.Response:
            requests.append((request.path, None))
            return web.json_response({"success": True})

        async def complete(request: web.Request) -> web.Response:
            body = await request.json()
            requests.append((request.path, body))
            async with http.post(f"{policy.url}{request.path}", json=body) as answer:
                return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")

        app = web.Application()
        app.router.add_post("/collective_rpc", load)
        app.router.add_post("/reset_prefix_cache", reset)
        app.router.add_post("/v1/chat/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@pytest.mark.slow
async def test_vllm_loads_each_version_and_is_asked_for_token_ids_and_log_probabilities(
    models: TransformerModels, tmp_path: Path
) -> None:
    model, requests = saved(models, tmp_path, tied=False), list[tuple[str, Any]]()
    async with vllm(PretrainedModels(SMALL, Pretrained(model, tmp_path)), requests) as url:
        course = one_step(model, tmp_path / "checkpoints", url)
        code = await asyncio.to_thread(run, "memory://", course, name="served", runners=0, quiet=True)
    assert code == OK
    loaded = [body["kwargs"]["weights_path"] for path, body in requests if path == "/collective_rpc"]
    assert loaded == [str((tmp_path / f"checkpoints/served/weights/{version}").resolve()) for version in (0, 1)]
    assert [path for path, _ in requests].count("/reset_prefix_cache") == 2
    completions = [body for path, body in requests if path == "/v1/chat/completions"]
    assert len(completions) >= 28
    for body in completions:
        assert (body["model"], body["return_token_ids"], body["logprobs"]) == (SERVED_MODEL, True, True)
        assert (body["max_tokens"], body["temperature"]) == (2, 1.0)
        assert isinstance(body["seed"], int)


@pytest.mark.slow
def test_a_vllm_that_cannot_be_reached_is_an_error(
    models: TransformerModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    course = one_step(saved(models, tmp_path, tied=False), tmp_path / "checkpoints", "http://127.0.0.1:9")
    assert run("memory://", course, runners=0, quiet=True) == FAILED
    assert "start vLLM with VLLM_SERVER_DEV_MODE=1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_vllm_would_reload_in_part_is_refused(
    models: TransformerModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    course = one_step(saved(models, tmp_path), tmp_path / "checkpoints", "http://127.0.0.1:9")
    assert run("memory://", course, runners=0, quiet=True) == FAILED
    assert "(tie_word_embeddings), which vLLM does not reload" in capsys.readouterr().err
