"""`rollbook proxy` forwards and records the model calls of any agent."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import openai
import pytest

from store import HTTPStore, open_store
from tests.cli.conftest import COMMAND, Filled, Rollbook, environment
from tests.llm_proxy.model_server import MESSAGES, MODEL, ModelServer, model_server, waits

_LONGEST = 250
"""Seconds after which a test fails instead of waiting for the proxy. It is far more than a loaded machine needs."""


class Running:
    """A proxy in a process of its own.

    Attributes:
        said: what it printed when it began.
    """

    def __init__(self, process: subprocess.Popen[str], said: str) -> None:
        self._process = process
        self.said = said

    def client(self, rollout_id: str, attempt_id: str, key: str = "none") -> openai.AsyncOpenAI:
        """Return the stock client with the base URL that the proxy told to use."""
        (form,) = re.findall(r"^ +(http://\S+/rollout/ROLLOUT_ID/attempt/ATTEMPT_ID/v1)$", self.said, re.MULTILINE)
        url = form.replace("ROLLOUT_ID", rollout_id).replace("ATTEMPT_ID", attempt_id)
        return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)

    def send(self, signal_: str) -> None:
        """Send a signal."""
        self._process.send_signal(signal.Signals[signal_])

    async def ended(self) -> tuple[int, str]:
        """Return its exit code, and what else it printed."""
        out, err = await asyncio.to_thread(self._process.communicate, timeout=_LONGEST)
        return self._process.returncode, out + err


@asynccontextmanager
async def proxying(db: str, *arguments: str, **variables: str) -> AsyncGenerator[Running]:
    """Run it on a free port; in the end it is gone."""
    with _started(db, *arguments, **variables) as process:
        try:
            yield Running(process, await asyncio.to_thread(_introduction, process))
        finally:
            process.kill()


def _started(db: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "proxy", "--port", "0", *arguments],
        env=environment(db, PYTHONPATH=os.pathsep.join(sys.path), **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _introduction(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    lines = [process.stdout.readline()]
    while lines[-1] and not lines[-1].startswith("or with"):
        lines.append(process.stdout.readline())
    assert lines[-1], process.stderr.read()
    return "".join(lines)


def _backend(model: ModelServer) -> tuple[str, ...]:
    return ("--backend", f"main={model.url}/v1,{MODEL}", "--token-ids")


@pytest.mark.slow
async def test_a_call_is_recorded_under_the_printed_url_until_ctrl_c(durable_url: str) -> None:
    async with model_server() as model, await open_store(durable_url) as store:
        started = await store.start_rollout(1)
        async with proxying(durable_url, *_backend(model)) as proxy:
            assert f"  main: {MODEL} at {model.url}/v1" in proxy.said
            client = proxy.client(started.rollout_id, started.attempt.attempt_id)
            answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
            await client.close()
            assert answer.choices[0].message.content == "It is 42."
            (span,) = await store.query_spans(started.rollout_id)
            assert (span.sequence_id, span.attributes["response_token_ids"]) == (1, [21, 22, 23])
            proxy.send("SIGINT")
            assert await proxy.ended() == (0, "")


@pytest.mark.slow
async def test_a_call_in_flight_is_answered_and_recorded_before_it_ends(durable_url: str) -> None:
    async with model_server() as model, await open_store(durable_url) as store:
        model.will(waits(gate := asyncio.Event()))
        started = await store.start_rollout(1)
        async with proxying(durable_url, *_backend(model)) as proxy:
            client = proxy.client(started.rollout_id, started.attempt.attempt_id)
            calling = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=MESSAGES))
            await model.was_asked()
            proxy.send("SIGTERM")
            gate.set()
            await calling
            await client.close()
            assert await proxy.ended() == (0, "")
        assert len(await store.query_spans(started.rollout_id)) == 1


@pytest.mark.slow
async def test_keys_come_from_the_environment_and_are_not_printed(durable_url: str) -> None:
    keys = {"ROLLBOOK_PROXY_KEY": "of-the-proxy", "ROLLBOOK_BACKEND_KEY": "of-the-model"}
    async with model_server() as model, await open_store(durable_url) as store:
        started = await store.start_rollout(1)
        async with proxying("sqlite:///unused.db", *_backend(model), "--store", durable_url, **keys) as proxy:
            for key, error in (("wrong", openai.AuthenticationError), ("of-the-proxy", None)):
                client = proxy.client(started.rollout_id, started.attempt.attempt_id, key)
                calling = client.chat.completions.create(model=MODEL, messages=MESSAGES)
                if error is None:
                    await calling
                else:
                    with pytest.raises(error):
                        await calling
                await client.close()
            assert [asked.headers["authorization"] for asked in model.asked] == ["Bearer of-the-model"]
            assert not any(key in proxy.said for key in keys.values())


BACKEND = ("--backend", "main=http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        ((), 2, "--backend"),
        (("--backend", "main"), 2, "--backend: 'main' is not of the form NAME=URL"),
        (("--backend", "=http://127.0.0.1:9"), 2, "--backend: '=http://127.0.0.1:9' is not of the form NAME=URL"),
        (("--backend", "main=http://127.0.0.1:9,"), 2, "is not of the form NAME=URL or NAME=URL,model,model"),
        (("--backend", "main=127.0.0.1:9"), 2, "is not an HTTP URL"),
        ((*BACKEND, *BACKEND), 2, "two backends have the name 'main'"),
        (
            (*BACKEND, "--host", "0.0.0.0"),
            2,
            "--host: 0.0.0.0 is reachable from other machines; set ROLLBOOK_PROXY_KEY",
        ),
        ((*BACKEND, "--port", "65536"), 2, "--port"),
        (BACKEND, 5, "rollbook migrate"),
        ((*BACKEND, "--store", "http://127.0.0.1:1"), 4, "http://127.0.0.1:1"),
    ],
    ids=["none", "form", "nameless", "no-model", "no-http", "twice", "host", "port", "no-store", "no-server"],
)
@pytest.mark.slow
def test_invalid_proxy_options_give_one_message(
    bare: Rollbook, arguments: tuple[str, ...], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client goes on trying for half a minute.
    defaults = HTTPStore.__init__.__kwdefaults__
    assert defaults
    monkeypatch.setitem(defaults, "retry_seconds", 0.5)
    printed = bare("proxy", *arguments)
    assert (printed.code, printed.out) == (code, "")
    assert said in printed.err
    assert "Traceback" not in printed.err


def test_a_port_that_is_taken_is_named(bare: Rollbook, filled_file: Filled) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        printed = bare("proxy", *BACKEND, "--port", str(port), db=filled_file.url)
    assert printed.code == 1
    assert f"address already in use: 127.0.0.1:{port}" in printed.err
    assert "Traceback" not in printed.err
