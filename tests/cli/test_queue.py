"""`rollbook enqueue`, `cancel` and `retry`, and the failures that `show` prints."""

from __future__ import annotations

import asyncio
import codecs
import subprocess
from pathlib import Path

import pytest

from store import open_store
from store.interface.store import Store
from store.models import AttemptError
from tests.cli.conftest import COMMAND, ON_BOTH, Rollbook, environment, runner


async def _failed(url: str) -> str:
    """Return the id of a rollout whose only attempt failed with an error."""
    async with await open_store(url) as store:
        started = await store.start_rollout("a task")
        error = AttemptError(type="LookupError", message="no such tool: calculator")
        await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="failed", error=error)
        return started.rollout_id


@pytest.fixture
def rollbook(durable_url: str, monkeypatch: pytest.MonkeyPatch) -> Rollbook:
    """The command line on an empty store."""
    command = runner(durable_url, monkeypatch)
    assert command("migrate").code == 0
    return command


@pytest.fixture
def empty(rollbook: Rollbook, durable_url: str) -> str:
    """The URL of the empty store."""
    return durable_url


def _in_queue(url: str) -> list[object]:
    async def claim(store: Store) -> object:
        claimed = await store.dequeue_rollout("w")
        return None if claimed is None else claimed.input

    async def read() -> list[object]:
        async with await open_store(url) as store:
            return [await claim(store) for _ in range(5)]

    return [input_ for input_ in asyncio.run(read()) if input_ is not None]


@ON_BOTH
def test_inputs_go_into_the_queue_in_order_with_their_settings(rollbook: Rollbook, empty: str) -> None:
    done = rollbook("enqueue", '"first"', '{"n": 2}', "--mode", "val", "--group", "g", "--step", "3", "--timeout", "9")
    assert done.code == 0, done.err
    first, second = done.out.split()
    rollout = rollbook("show", first, "--json").json["rollout"]
    assert (rollout["input"], rollout["mode"], rollout["config"]["timeout_seconds"]) == ("first", "val", 9.0)
    assert rollout["metadata"] == {"rollbook.group": "g", "rollbook.step": 3}
    assert [row["actor"] for row in rollbook("history", second).table] == ["cli"]
    assert _in_queue(empty) == ["first", {"n": 2}]


def test_inputs_are_read_from_a_file_and_from_standard_input(rollbook: Rollbook, empty: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"n": 1}\n\n{"n": 2}\n')
    assert len(rollbook("enqueue", "--file", str(tmp_path / "tasks.jsonl"), "--json").json) == 2
    subprocess.run([*COMMAND, "enqueue", "-f", "-"], env=environment(empty), input=b"3\n", check=True)
    assert _in_queue(empty) == [{"n": 1}, {"n": 2}, 3]


def test_files_of_windows_are_read(rollbook: Rollbook, tmp_path: Path) -> None:
    mark = codecs.BOM_UTF8
    windows = (mark + b'{"q": "\xc3\xbc"}\r\n\r\n' + mark + b"2\r\n", '\ufeff{"q": "ü"}\r\n2'.encode("utf-16-le"))
    mixed: list[object] = [{"q": "ü"}, 2]
    for content in windows:
        (tmp_path / "windows.jsonl").write_bytes(content)
        enqueued = rollbook("enqueue", "--file", str(tmp_path / "windows.jsonl"), "--json").json
        assert [rollout["input"] for rollout in enqueued] == mixed


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("enqueue",), "give inputs as JSON, or --file"),
        (("enqueue", "hello"), "INPUT: 'hello' is not JSON"),
        (("enqueue", "1", "--file", "x"), "give inputs as JSON, or --file"),
        (("enqueue", "1", "--mode", "play"), "play"),
        (("cancel",), "ID"),
        (("retry", "ro-none"), "no id of a rollout begins with"),
    ],
)
def test_invalid_queue_commands_are_refused_with_the_reason(
    rollbook: Rollbook, empty: str, arguments: tuple[str, ...], said: str
) -> None:
    refused = rollbook(*arguments)
    assert refused.code in {2, 5}
    assert said in refused.err
    assert _in_queue(empty) == []


def test_a_waiting_rollout_is_cancelled_and_put_back(rollbook: Rollbook, empty: str) -> None:
    one, other = rollbook("enqueue", "1", "2").out.split()
    assert rollbook("cancel", one, one).out.split() == [one]
    assert rollbook("cancel", one).code == 0
    assert rollbook("retry", one, other).code == 0
    assert _in_queue(empty) == [2, 1]
    early = rollbook("retry", one)
    assert (early.code, f"rollout {one} has not ended: preparing" in early.err) == (1, True)
    ended = asyncio.run(_failed(empty))
    late = rollbook("cancel", other, ended)
    assert (late.code, f"rollout {ended} has ended: failed" in late.err) == (1, True)
    assert rollbook("show", other, "--json").json["rollout"]["status"] == "preparing"


def test_show_prints_why_a_rollout_failed(rollbook: Rollbook, empty: str) -> None:
    rollout_id = asyncio.run(_failed(empty))
    output = rollbook("show", rollout_id).out
    assert "attempt 1 reported failed: LookupError: no such tool: calculator" in output
    assert rollbook("show", rollout_id, "--json").json["failures"] == [
        "attempt 1 reported failed: LookupError: no such tool: calculator"
    ]
    # Before the failure there was none.
    assert rollbook("show", rollout_id, "--at", "1", "--json").json["failures"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "ls rollouts",
        "enqueue 1",
        "partitions create one",
        "proxy --backend vllm=http://127.0.0.1:2/v1",
        "serve --port 0",
    ],
)
def test_a_server_that_does_not_answer_is_reported_after_a_few_tries(rollbook: Rollbook, command: str) -> None:
    refused = rollbook(*command.split(), "--db", "http://127.0.0.1:1")
    assert refused.code == 4
    tried = int(refused.err.partition("was tried ")[2].split()[0])
    # The client's own patience of 30 seconds would be more than thirty tries.
    assert tried < 15


def test_the_older_names_still_work(rollbook: Rollbook, empty: str) -> None:
    assert rollbook("keys", "list").out == rollbook("keys", "ls").out
    assert "--store" not in rollbook("runner", "--help").out
    refused = rollbook("runner", "tests.no_such_module:agent", "--store", empty)
    assert "No such option" not in refused.err
