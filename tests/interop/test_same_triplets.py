"""One agent yields the same triplets with Agent-lightning's runner on our server and with our runner.

The model is a scripted server of OpenAI's protocol. Ids of rollouts, attempts and spans, sequence ids and times differ
between any two runs; prompts, responses, token ids, ids of responses, rewards and their order must be equal.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.responses import Response

from store import open_store
from store.interface.store import Store
from store.models import LLM, Span
from store.training import Backend, LLMProxy, TracerTraceToTriplet
from tests.interop.peer import ENVIRONMENT, Peer, rollbook
from tests.llm_proxy.model_server import Asked, completion, model_server

AGENT = Path(__file__).parent / "inside" / "solver.py"
QUESTIONS = {"six times seven?": "42", "seven times six?": "42", "and the rest?": "1"}
ANSWERS = ("42", "forty-two", "1")
REWARDS = [1.0, -0.5, 1.0]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

DATABASES = [
    pytest.param("sqlite", marks=pytest.mark.xdist_group("interop-sqlite")),
    pytest.param("postgres", marks=[pytest.mark.xdist_group("interop-postgres"), pytest.mark.postgres]),
]


async def _model(asked: Asked) -> Response:
    """Answer by the turn of the conversation; token ids say how long it was."""
    messages: list[Any] = asked.json["messages"]
    turn = (len(messages) - 2) // 2
    message = {"role": "assistant", "content": ANSWERS[turn]}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [turn, 7, 8]}
    answer = completion(id=f"chatcmpl-{turn}", prompt_token_ids=list(range(len(messages))), choices=[choice])
    return Response(orjson.dumps(answer), media_type="application/json")


@dataclass(frozen=True, slots=True)
class Sides:
    """The rollouts of one task, by who ran them, in one store."""

    store: Store
    url: str
    theirs: str
    ours: str

    async def spans(self, rollout_id: str) -> Sequence[Span]:
        return await self.store.query_spans(rollout_id, "latest")


class Setting:
    """A server, its client, and the environments in which the agent is run."""

    def __init__(self, peer: Peer, url: str, store: Store, directory: Path) -> None:
        self._peer = peer
        self._own = Peer(Path(sys.executable), directory)
        self._url = url
        self.store = store
        self._directory = directory

    async def sides(self, llm: LLM, tracer: str) -> Sides:
        """Run the agent on both sides, in turn."""
        await self.store.add_resources({"main_llm": llm})
        theirs = await self._run(self._peer, "agentlightning", tracer, AGENT)
        ours = await self._run(self._own, "store.training", "Tracer", self._changed())
        return Sides(self.store, self._url, theirs, ours)

    def _changed(self) -> Path:
        """Return a copy of the agent in which nothing but the line of its import differs."""
        path = self._directory / "changed.py"
        before = AGENT.read_text().splitlines()
        after = [line.replace("from agentlightning import", "from store.training import") for line in before]
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
        path.write_text("\n".join(after))
        return path

    async def _run(self, where: Peer, package: str, tracer: str, agent: Path) -> str:
        queued = await self.store.enqueue_rollout({"questions": QUESTIONS}, mode="train")
        arguments = ("--package", package, "--tracer", tracer, "--agent", str(agent), "--url", self._url)
        # AgentOps would write its log into the checkout.
        quiet = {"AGENTOPS_LOGGING_TO_FILE": "false"}
        said = await asyncio.to_thread(where.run, "solving", *arguments, served_at=self._url, **quiet)
        (ended,) = await self.store.wait_for_rollouts([queued.rollout_id], timeout=0) or [queued]
        assert ended.status == "succeeded", said[-6000:]
        return queued.rollout_id

    async def upstream_triplets(self, sides: Sides) -> tuple[list[Any], list[Any]]:
        """Return what Agent-lightning's own adapter makes of each side."""
        report = self._directory / "triplets.json"
        arguments = ("--url", sides.url, "--report", str(report), sides.theirs, sides.ours)
        await asyncio.to_thread(self._peer.run, "adapting", *arguments)
        triplets = json.loads(report.read_text())
        return triplets[sides.theirs], triplets[sides.ours]


@pytest.fixture
async def setting(request: pytest.FixtureRequest, peer: Peer, tmp_path: Path) -> AsyncIterator[Setting]:
    database = f"sqlite:///{tmp_path / 'run.db'}"
    if request.param == "postgres":
        database = request.getfixturevalue("postgres_url")
    with rollbook(database) as url:
        store = await open_store(url)
        try:
            yield Setting(peer, url, store, tmp_path)
        finally:
            await store.close()


@asynccontextmanager
async def _asked_directly() -> AsyncGenerator[LLM]:
    async with model_server() as model:
        model.will(_model)
        yield LLM(endpoint=f"{model.url}/v1", model="tiny")


@asynccontextmanager
async def _asked_through_our_proxy(store: Store) -> AsyncGenerator[LLM]:
    async with model_server() as model:
        model.will(_model)
        backend = Backend("main", f"{model.url}/v1", models=["tiny"], supports_token_ids=True)
        async with LLMProxy(store=store, backends=[backend]) as proxy:
            yield proxy.as_resource()


@pytest.mark.parametrize("setting", DATABASES, indirect=True)
@pytest.mark.skipif(ENVIRONMENT == "today", reason="AgentOps loses its spans with today's packages")
async def test_calls_traced_in_the_agent_give_the_same_triplets(setting: Setting) -> None:
    """Its default tracer, AgentOps', records the `openai` client there, ours here."""
    async with _asked_directly() as llm:
        sides = await setting.sides(llm, "AgentOpsTracer")
    await _are_equal(setting, sides)


@pytest.mark.parametrize("setting", DATABASES, indirect=True)
async def test_calls_recorded_by_our_proxy_give_the_same_triplets(setting: Setting) -> None:
    """Its OpenTelemetry tracer sees no calls, so the proxy's spans are all there is of them."""
    async with _asked_through_our_proxy(setting.store) as llm:
        sides = await setting.sides(llm, "OtelTracer")
    await _are_equal(setting, sides)


async def _are_equal(setting: Setting, sides: Sides) -> None:
    theirs, ours = [
        [_compared(triplet.model_dump()) for triplet in TracerTraceToTriplet().adapt(spans)]
        for spans in (await sides.spans(sides.theirs), await sides.spans(sides.ours))
    ]
    assert ours == theirs
    assert [triplet["reward"] for triplet in ours] == REWARDS
    assert [triplet["metadata"]["response_id"] for triplet in ours] == [f"chatcmpl-{turn}" for turn in range(3)]
    assert [triplet["prompt"]["token_ids"] for triplet in ours] == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    assert [triplet["response"]["token_ids"] for triplet in ours] == [[turn, 7, 8] for turn in range(3)]
    of_theirs, of_ours = await setting.upstream_triplets(sides)
    assert [_compared(triplet) for triplet in of_ours] == [_compared(triplet) for triplet in of_theirs]
    assert [triplet["reward"] for triplet in of_ours] == REWARDS


_OF_ONE_RUN = ("rollout_id", "attempt_id", "sequence_id", "span_ids")


def _compared(triplet: dict[str, Any]) -> dict[str, Any]:
    metadata = triplet["metadata"]
    comparable = {name: value for name, value in metadata.items() if name not in _OF_ONE_RUN}
    return {**triplet, "metadata": comparable}
