"""Standard output of every encoding, closed or full, and the end by Ctrl+C."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from store import open_store
from store.cli.commands import stats
from store.cli.output import streams
from store.cli.output.printing import json_document, line
from tests.cli.conftest import COMMAND, Filled, Rollbook, environment

TEXT = "日本 ü → 𝄞 \udcff…"
RUN_COMMANDS = """
import json, os, sys
from store.cli import main
import store.cli.commands.history, store.cli.commands.ls, store.cli.commands.show, store.sql.log, store.sql.store
for arguments in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        sys.argv = ["rollbook", *arguments]
        main()
    assert os.waitpid(child, 0)[1] == 0, arguments
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_every_text_is_printed_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", output)
    streams.prepare()
    line(TEXT)
    json_document({"text": TEXT[:-2]})
    output.flush()
    printed: Any = output.buffer
    text, document = printed.getvalue().decode(encoding).splitlines()
    assert text.endswith("\\udcff…" if encoding in {"utf-8", "cp1252"} else "\\udcff...")
    assert ("->" in text) == (encoding != "utf-8")
    assert orjson.loads(document.encode()) == {"text": TEXT[:-2]}
    assert document.isascii() == (encoding != "utf-8")


@pytest.mark.slow
def test_commands_print_texts_that_the_encoding_of_the_locale_lacks(filled_file: Filled) -> None:
    async def enqueue() -> str:
        async with await open_store(filled_file.url) as store:
            rollout = await store.enqueue_rollout({"q": "日本 ü 𝄞"}, metadata={"ключ": "→"})
            claimed = [await store.dequeue_rollout("wörker") for _ in range(3)]
            assert claimed[-1] is not None
            return rollout.rollout_id

    rollout_id = asyncio.run(enqueue())
    commands = [
        ["history", rollout_id],
        ["ls", "rollouts"],
        ["show", rollout_id],
        ["tail"],
        ["ls", "rollouts", "--json"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", RUN_COMMANDS, json.dumps(commands)],
        env=environment(filled_file.url, PYTHONIOENCODING="ascii"),
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert "\\u65e5\\u672c \\u00fc" in done.stdout.decode("ascii")


@pytest.mark.slow
def test_a_closed_or_full_output_ends_a_command_without_a_traceback(filled_file: Filled) -> None:
    env = environment(filled_file.url)
    command = [*COMMAND, "ls", "rollouts"]
    closed = subprocess.run(command, env=env, check=False, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert (closed.returncode, closed.stderr) == (0, b"")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, env=env, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "rollbook: [Errno 28] No space left on device\n")


def test_ctrl_c_ends_a_command_with_one_line(rollbook: Rollbook, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stats, "_print", interrupted)
    printed = rollbook("stats")
    assert (printed.code, printed.out, printed.err) == (130, "", "rollbook: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("module, arguments", [("store.cli.app", []), ("typer.rich_utils", ["ls", "spans"])])
def test_ctrl_c_during_the_imports_ends_the_process_with_one_line(module: str, arguments: list[str]) -> None:
    program = """
import os, signal, sys
module = sys.argv.pop()
class Finder:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
from store.cli import main
sys.meta_path.insert(0, Finder())
main()
"""
    command = [sys.executable, "-c", program, *arguments, module]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rollbook: interrupted\n")


@pytest.mark.slow
def test_second_ctrl_c_ends_a_command_that_still_cleans_up() -> None:
    program = """
import asyncio, os, signal, sys
from store.cli import main
from store.cli.commands import stats
async def clean_up_slowly():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
stats._count = lambda *_: clean_up_slowly()
sys.argv = ["rollbook", "stats", "--db", "sqlite:///none.db"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rollbook: interrupted\n")
