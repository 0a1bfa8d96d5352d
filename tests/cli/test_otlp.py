"""`rollbook export otlp` to a collector, `rollbook import otlp`, and the commands of docs/otlp.md."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from store import open_store
from store.cli.errors import FAILED, USAGE
from store.semconv import EXPORT_ATTRIBUTES, EXPORTED
from tests.cli.conftest import Filled, Rollbook
from tests.exports.collector import Answer, CollectorServer, collecting

PAGE = Path(__file__).parents[2] / "docs/otlp.md"


@pytest.fixture
def collector() -> Iterator[CollectorServer]:
    with collecting() as server:
        yield server


def test_the_commands_and_the_example_of_the_page_run(
    rollbook: Rollbook,
    collector: CollectorServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(_create("sqlite:///other.db"))
    text = PAGE.read_text().replace("http://localhost:4318", collector.url)
    blocks = re.findall(r"^```(py|console)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    (commands,) = [block for kind, block in blocks if kind == "console"]
    printed = [rollbook(*shlex.split(line.removeprefix("$ rollbook "))) for line in commands.splitlines()]
    assert [(done.code, done.err) for done in printed] == [(0, "")] * 4
    files, chosen, forwarded, imported = (done.out for done in printed)
    count = len((tmp_path / "out" / "part-00000.jsonl").read_bytes().splitlines())
    assert files.splitlines()[1].split() == ["otlp", str(count), "rows"]
    assert re.match(r"sent to http\S+/v1/traces: 0 spans of 0 rollouts at position \d+; 0 requests in", chosen)
    assert re.match(rf"sent to http\S+/v1/traces: {count} spans; 1 requests in", forwarded)
    assert re.match(rf"imported 1 rollouts, {count} spans; 0 unchanged, 0 skipped; ", imported)
    (example,) = [block for kind, block in blocks if kind == "py"]
    exec(compile(example, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.split() == ["0", "1", str(count), "0"]


async def _create(url: str) -> None:
    async with await open_store(url):
        pass


def test_the_page_lists_the_attributes_of_exports() -> None:
    table = PAGE.read_text().partition("## Attributes")[2].partition("\n\n`rollbook.exported`")[0]
    assert re.findall(r"`([\w.]+)`", re.sub(r"\|[^|]*\|$", "", table, flags=re.MULTILINE)) == [
        *EXPORT_ATTRIBUTES[:6],
        *("rollbook.resources_id", "rollbook.attempt", "rollbook.status", "rollbook.reward"),
        *("rollbook.input", "rollbook.metadata", EXPORTED),
    ]


def test_spans_that_a_collector_refuses_are_printed(rollbook: Rollbook, collector: CollectorServer) -> None:
    partial = b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"too \\u001b old"}}'
    collector.answers = [Answer(body=partial, headers={"Content-Type": "application/json"})] * 2
    options = ("export", "otlp", "--to", collector.url, "--header", "Authorization = Bearer x=")
    done = rollbook(*options)
    assert (done.code, collector.requests[0].headers["authorization"]) == (FAILED, "Bearer x=")
    assert re.search(r"the collector has refused 1 of the spans: too \S* ?old", done.err)
    as_json = orjson.loads(rollbook(*options, "--json").out)
    assert (as_json["refused"], as_json["cursor"]) == (1, None)


@pytest.mark.parametrize(
    "options,problem",
    [
        ([], "give DIR for files, or --to for a collector"),
        (["out", "--to", "http://x"], "give DIR for files, or --to for a collector"),
        (["out", "--cursor", "c"], "--cursor: is only for a collector"),
        (["--to", "http://x", "--split-by", "mode"], "--split-by: is only for files"),
        (["--to", "http://x", "--forward"], "--forward: needs --cursor, a file for the place in the log"),
        (["--to", "http://x", "--cursor", "c", "--mode", "train"], "leave the conditions and --as-at out"),
        (["--to", "http://x", "--cursor", "c", "--as-at", "3"], "leave the conditions and --as-at out"),
        (["--to", "http://x", "--header", "x"], "'x' is not NAME=VALUE"),
        (["--to", "http://x", "--encoding", "xml"], "encoding: 'xml' is not one of protobuf, json"),
        (["--to", "localhost:4318"], "'localhost:4318' is not the URL of a collector"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_options_that_do_not_fit_together_are_usage_errors(
    options: list[str], problem: str, rollbook: Rollbook, filled: Filled
) -> None:
    del filled
    failed = rollbook("export", "otlp", *options)
    assert failed.code == USAGE
    assert problem in " ".join(failed.err.replace("│", " ").split())


def test_an_import_names_the_parts_that_it_skips(rollbook: Rollbook, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("hello")
    done = rollbook("import", "otlp", str(tmp_path / "a.json"))
    assert (done.code, done.out.startswith("imported 0 rollouts, 0 spans; 0 unchanged, 1 skipped; ")) == (FAILED, True)
    assert f"skipped {tmp_path}/a.json: the file is not OTLP in JSON" in done.err
