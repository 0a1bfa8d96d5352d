"""Every command of `rollbook`, run once on a SQLite file in the working directory.

Commands that end by themselves run in this process, so that the package is imported once. The others are programs that
are stopped when they have printed that they are ready. With `--short`, the programs, and the commands that need their
results, only print their help, and every module of the package is imported.
"""

import importlib
import io
import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import rollbook
from rollbook.cli.app import app
from typer import Context
from typer.main import get_command

PROGRAM = Path(sys.executable).with_name("rollbook")
LONGEST_SECONDS = 150.0
"""The maximum duration of a program; then it is killed."""
RUN: set[str] = set()
"""The commands that were run."""


def names() -> Iterator[str]:
    """Yield the commands that `rollbook --help` and the help of each group list."""
    top: Any = get_command(app)
    context = Context(top)
    for name in top.list_commands(context):
        command = top.get_command(context, name)
        if not command.hidden:
            command = top.resolve_command(context, [name])[1]
            inner = getattr(command, "commands", {})
            yield from (f"{name} {child}" for child, one in inner.items() if not one.hidden)
            if not inner:
                yield name


def call(name: str, *arguments: str, code: int = 0) -> str:
    """Run a command in this process, check its exit code, and return its output."""
    RUN.add(name)
    out, err = io.StringIO(), io.StringIO()
    ended: int | str | None = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app([*name.split(), *arguments], prog_name="rollbook")
        except SystemExit as stopped:
            ended = stopped.code
    if (ended or 0) != code:
        raise AssertionError(
            f"rollbook {name} {' '.join(arguments)}: exit code {ended}\n{out.getvalue()}{err.getvalue()}"
        )
    return out.getvalue() + err.getvalue()


def stop_when_ready(
    name: str, *arguments: str, ready: str | Callable[[], None], codes: tuple[int, ...] = (0, 130)
) -> None:
    """Start a command as a program, stop it as Ctrl+C does when it is ready, and check its exit code.

    Args:
        name: the command.
        arguments: its arguments.
        ready: a text that the program prints when it is ready, or a function that returns then.
        codes: the exit codes that are right.
    """
    RUN.add(name)
    process = subprocess.Popen(
        [PROGRAM, *name.split(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    printed = ""
    assert process.stdout is not None
    watch = threading.Timer(LONGEST_SECONDS, process.kill)
    watch.start()
    with process:
        if isinstance(ready, str):
            while ready not in printed and (line := process.stdout.readline()):
                printed += line
        else:
            ready()
        process.send_signal(signal.SIGINT)
        printed += process.stdout.read()
        code = process.wait()
    watch.cancel()
    if code not in codes or (isinstance(ready, str) and ready not in printed):
        raise AssertionError(f"rollbook {name} {' '.join(arguments)}: exit code {code}\n{printed}")


def queue_is_empty() -> None:
    """Wait until the runner has done all that was queued."""
    with rollbook.open_sync(os.environ["ROLLBOOK_DB"]) as opened:
        queued = [rollout.rollout_id for rollout in opened.query_rollouts(status_in=["queuing", "requeuing"])]
        assert queued
        assert len(opened.wait_for_rollouts(rollout_ids=queued, timeout=LONGEST_SECONDS)) == len(queued)


def queue() -> None:
    call("migrate")
    first, second, third = json.loads(call("enqueue", "1", "2", "3", "--json"))
    ids = [rollout if isinstance(rollout, str) else rollout["rollout_id"] for rollout in (first, second, third)]
    call("cancel", ids[0])
    call("retry", ids[0])
    call("annotate", ids[0], "--label", "mine", "--note", "the first")
    call("history", ids[0])
    call("show", ids[0])
    for kind in ("rollouts", "resources", "workers"):
        call(f"ls {kind}")
    call("ls attempts", "--rollout", ids[0])
    call("ls spans", "--rollout", ids[0])
    Path("tasks.jsonl").write_text("1\n2\n")
    call("train", "agents:trainer", "--agent", "agents:echo", "--train", "tasks.jsonl")


def runs() -> None:
    """Use the runs of the trading example, which is also a command."""
    RUN.add("trading")
    subprocess.run([PROGRAM, "trading"], check=True, stdout=subprocess.DEVNULL)
    (run,) = json.loads(call("runs", "--json"))
    run_id = run["rollout"]["rollout_id"]
    call("lineage", run_id)
    call("compare", run_id, "2", "3")
    call("undo", run_id, "--to", "3")
    call("rerun", run_id, "--node", "Portfolio Manager", "--scope", "TSDD", "--plan")
    call("export-run", run_id, "folders")
    call("mirror", "mirrored", "--once")
    call("migrate", "--db", "sqlite:///imported.db")
    call("import-runs", "folders", "--db", "sqlite:///imported.db")


def log() -> None:
    call("stats")
    call("tail")
    call("seal", "log.seal")
    assert "intact" in call("verify", "--seal", "log.seal")
    call("rebuild")
    assert "schema revision" in call("doctor")


def copies() -> None:
    call("backup", "first.backup")
    assert "verified" in call("restore", "first.backup", "--db", "sqlite:///restored.db")
    call("copy", "sqlite:///restored.db", "sqlite:///copied.db")


def payload() -> None:
    with rollbook.open_sync(os.environ["ROLLBOOK_DB"]) as opened:
        rollout_id = opened.query_rollouts(status_in=["succeeded"])[0].rollout_id
    call("redact", rollout_id, "--input", "--reason", "request 17", "--yes")
    assert "on disk" in call("compact")
    assert "nothing was removed" not in call("forget", "--match", "a text that occurs nowhere")
    assert "bodies" in call("retention", "--older-than", "1s")
    assert "bodies" in call("archive", "old.archive", "--older-than", "1s")
    assert "intact" in call("verify")


def administration() -> None:
    call("partitions create", "second")
    assert "second" in call("partitions ls")
    call("partitions drop", "second", "--yes")
    call("keys create", "--role", "reader")
    (key_id,) = [key["id"] for key in json.loads(call("keys ls", "--json"))]
    call("keys list")
    call("keys rotate", key_id)
    call("keys revoke", key_id)
    call("keys create", "--role", "admin")
    call("keys enforce", "--in", "1h")


def programs() -> None:
    stop_when_ready("serve", "--port", "0", ready="http://")
    stop_when_ready("ui", "--port", "0", ready="http://")
    stop_when_ready("proxy", "--port", "0", "--backend", "model=http://127.0.0.1:9/v1,policy", ready="http://")


def workers() -> None:
    call("enqueue", "4")
    stop_when_ready("runner", "agents:echo", ready=queue_is_empty)
    stop_when_ready("demo", "--db", "sqlite:///demo.db", "--runners", "2", ready="\n", codes=(0, 1, 130))
    # Without PyTorch, the example says how to install it.
    assert "pip install" in call("guess-number", "--db", "sqlite:///guess.db", code=1)


def modules() -> None:
    """Import every module. Those of extras need packages that are not installed."""
    for module in pkgutil.walk_packages(rollbook.__path__, "rollbook."):
        if module.name.startswith(("rollbook.packaging", "rollbook.__main__")):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in {"rollbook", "store"}:
                raise


if __name__ == "__main__":
    os.environ["ROLLBOOK_DB"] = "sqlite:///commands.db"
    is_short = "--short" in sys.argv
    queue()
    if not is_short:
        # The programs use the same database at the same time.
        with ThreadPoolExecutor(2) as pool:
            others = pool.submit(programs)
            runs()
            others.result()
        workers()
    log()
    copies()
    payload()
    administration()
    if is_short:
        for name in set(names()) - RUN:
            call(name, "--help")
        modules()
    missing = set(names()) - RUN
    assert not missing, f"add an invocation of each of these commands to {Path(__file__).name}: {sorted(missing)}"
    print(len(RUN))
