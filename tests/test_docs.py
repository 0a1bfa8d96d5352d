"""The documentation: names exist, names are documented, and examples print the documented output."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer import Context
from typer.main import get_command

import store
from store import SyncStore, errors, models, training
from store.cli.app import app
from store.cli.configuration import SECRETS
from store.cli.errors import NOT_FOUND, NOT_INTACT, OK, UNAVAILABLE, USAGE
from store.db import url
from store.db.tables import core as core_tables
from store.domain.events import FACTS
from store.integrations import collections
from store.integrations.langgraph import RollbookSaver
from store.interface.annotations import StoreAnnotations
from store.interface.log import StoreLog
from store.interface.runs import StoreRuns
from store.interface.threads import StoreThreads
from store.runtime import postgres_url
from store.semconv import RESERVED_METADATA
from store.sql.threads import SQLThreads
from tests.benchmarks import trainers
from tests.benchmarks.publish import NAMES, readme_figures
from tests.documented_names import listed, public_names
from tests.terminal import on_a_terminal

ROOT = Path(__file__).parents[1]
PARTS = {"log": StoreLog, "runs": StoreRuns, "annotations": StoreAnnotations, "threads": StoreThreads}
PAGES = sorted(
    path for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")] if path.is_file()
)


class Block(NamedTuple):
    """A fenced block."""

    page: str
    line: int
    language: str
    text: str


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text()
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        yield Block(page_id(path), text[: match.start()].count("\n") + 1, match[1], match[2])


def prose(path: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def code(path: Path) -> list[str]:
    """What a page sets between single backticks, breaks of lines removed."""
    return [re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose(path))]


BLOCKS = [block for path in PAGES for block in blocks(path)]
DOCS = "\n".join(path.read_text() for path in PAGES if "decisions" not in path.parts)


def block_id(block: Block) -> str:
    return f"{block.page}:{block.line}"


def test_every_link_in_the_pages_leads_to_a_file() -> None:
    links = [(path, target) for path in PAGES for target in re.findall(r"\[[^\]]+\]\(([^)]+)\)", prose(path))]
    assert links
    # The pages work without a network.
    wrong = [
        f"{page_id(path)}: {target}"
        for path, target in links
        if "://" in target or not (path.parent / target.partition("#")[0]).exists()
    ]
    assert wrong == []


def test_links_to_sections_lead_to_headings() -> None:
    links = [(path, target) for path in PAGES for target in re.findall(r"\]\(([^)]*#[^)]+)\)", prose(path))]
    assert links
    wrong = [
        f"{page_id(path)}: {target}"
        for path, target in links
        if target.partition("#")[2] not in anchors(path.parent / target.partition("#")[0] if target[0] != "#" else path)
    ]
    assert wrong == []


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_that_the_pages_name_exists() -> None:
    names = [
        (path, name)
        for path in PAGES
        for name in code(path)
        if re.fullmatch(r"(store|tests|docs|migrations)/[\w./-]+", name)
    ]
    assert names
    assert [f"{page_id(path)}: {name}" for path, name in names if not (ROOT / name).exists()] == []


def test_every_module_that_the_pages_name_exists() -> None:
    names = [(path, name) for path in PAGES for name in code(path) if re.fullmatch(r"(store|rollbook)(\.\w+)+", name)]
    assert names
    assert [f"{page_id(path)}: {name}" for path, name in names if not is_defined(name)] == []


def is_defined(name: str) -> bool:
    """Return whether a name leads to a module, to a name in a module, or begins with an object such as `store.log`."""
    module, names = ROOT / "store", name.split(".")[1:]
    while names and ((module / names[0]).is_dir() or (module / f"{names[0]}.py").is_file()):
        module /= names.pop(0)
    source = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    texts = [path.read_text() for path in (source, source.with_suffix(".pyi")) if path.exists()]
    return not names or module.name == "store" or names[0] in "".join(texts)


DECISIONS = ROOT / "docs/decisions"


def decisions() -> dict[int, str]:
    """Return the numbers of all decisions, with the names of the records that contain them."""
    numbers = {int(path.name[:4]): path.name for path in DECISIONS.glob("[0-9]*.md")}
    small = next(DECISIONS.glob("0001-*.md"))
    return numbers | {
        int(number): small.name for number in re.findall(r"^\| (\d+) \|", small.read_text(), re.MULTILINE)
    }


def test_every_decision_record_states_its_subject_status_and_date() -> None:
    index = re.findall(r"^\| ([\d, ]+) \| (.*) \|$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    rows: list[str] = []
    for path in sorted(DECISIONS.glob("[0-9]*.md")):
        record = re.match(r"# (\d+)\. (.+)\n\nStatus: (.+)\nDate: (\d{4}-\d\d-\d\d)\n\n", path.read_text())
        assert record, path.name
        number, subject, status, date = record.groups()
        assert path.name == f"{int(number):04}-{re.sub('[^a-z0-9]+', '-', subject.lower())}.md"
        later = re.fullmatch(r"accepted|(?:accepted; superseded in part|superseded) by (\d{4})", status)
        assert later, f"{path.name}: {status}"
        assert later[1] is None or int(later[1]) in decisions()
        rows.append(f"[{subject}]({path.name}) | {status} | {date}")
    assert [row for _, row in index] == rows
    assert {
        int(number): re.findall(r"\((.*)\)", row)[0] for numbers, row in index for number in numbers.split(", ")
    } == (decisions())


def test_code_that_depends_on_a_decision_names_its_number() -> None:
    sources = [path.read_text() for name in ("store", "tests") for path in (ROOT / name).rglob("*.py")]
    named = [numbers for source in sources for numbers in re.findall(r"[Dd]ecisions? (\d+)(?: and (\d+))?\b", source)]
    assert {int(number) for numbers in named for number in numbers if number} == set(decisions())


def test_every_page_can_be_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for path in PAGES:
        if path.parent == ROOT / "docs":
            assert f"({page_id(path)})" in readme
    assert "(docs/decisions)" in readme


def test_no_line_of_a_page_is_wider_than_120_characters() -> None:
    assert len(PAGES) > 50
    wide = [
        f"{page_id(path)}: {line}"
        for path in PAGES
        for line in prose(path).splitlines()
        if len(line) > 120 and not line.startswith("|")  # rows of a table cannot be broken
    ]
    assert wide == []


_RUN_EXAMPLES = """
import ast, atexit, gc, importlib, os, runpy, sys, threading, traceback

# What the examples import of the package is imported once; each example runs in a child of its own.
names = {("store.sql.store", ""), ("store.sql.log", ""), ("store.sql.runs", ""), ("store.verification.verify", "")}
for directory in sys.argv[1:]:
    with open(os.path.join(directory, "example.py")) as source:
        nodes = ast.walk(ast.parse(source.read()))
    names |= {(node.module, name.name) for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
for module, name in sorted(names):
    if module.partition(".")[0] in {"rollbook", "store"}:
        getattr(importlib.import_module(module), name, None)


def run(directory):
    os.chdir(directory)
    output = os.open("output", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["example.py"]
    sys.path[0] = directory
    try:
        # The processes that an example starts find it by its whole path.
        runpy.run_path(os.path.join(directory, "example.py"), run_name="__main__")
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
    sys.stdout.flush()
    # To destroy all that was imported would take longer than the example.
    os._exit(0)


gc.freeze()
for directory in sys.argv[1:]:
    if (child := os.fork()) == 0:
        run(directory)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), directory, flush=True)
"""


@pytest.mark.slow
def test_every_python_block_runs(tmp_path: Path) -> None:
    examples = [block for block in BLOCKS if block.language == "python"]
    assert len(examples) > 15
    directories = [tmp_path / str(number) for number in range(len(examples))]
    for directory, block in zip(directories, examples, strict=True):
        directory.mkdir()
        (directory / "example.py").write_text(block.text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _RUN_EXAMPLES, *map(str, directories)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    codes = [int(line.split()[0]) for line in done.stdout.splitlines()]
    failures = [
        f"{block_id(block)}:\n{(directory / 'output').read_text()}"
        for block, directory, code in zip(examples, directories, codes, strict=True)
        if code
    ]
    assert failures == [], "\n\n".join(failures)


def run_python(text: str, directory: Path) -> str:
    """Run a program in an interpreter of its own and return its output."""
    (directory / "example.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_example() -> str:
    return next(block.text for block in BLOCKS if block.page == "README.md" and block.language == "python")


def test_the_readme_is_a_front_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180


def test_the_figures_in_the_readme_are_rows_of_the_benchmarks_page() -> None:
    (figures,) = re.findall(r"<!-- figures -->\n(.*?)<!-- /figures -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert figures.strip() == readme_figures((ROOT / "docs/benchmarks.md").read_text()).strip()
    assert len(figures.strip().splitlines()) == 2 + 5


def test_every_benchmark_has_its_place_in_the_page() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    targets = re.findall(r"^(bench[a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    # This table is elsewhere.
    targets.remove("bench-sizes")
    of_sizes = (ROOT / "docs/production.md").read_text()
    assert re.search(r"<!-- sizes -->\n.*\| .* \|.*<!-- /sizes -->", of_sizes, re.DOTALL)
    assert sorted(targets) == sorted(NAMES)
    assert all(f"<!-- {name} -->" in page and f"<!-- /{name} -->" in page for name in targets)


def test_the_arithmetic_for_many_trainers_follows_from_the_measured_costs() -> None:
    production, page = ((ROOT / "docs" / name).read_text() for name in ("production.md", "clusters.md"))
    tables = {
        "one partition": trainers.one_partition(production),
        "many trainers": trainers.many_trainers(production, page),
    }
    for name, table in tables.items():
        (published,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", page, re.DOTALL)
        assert published.strip() == table.strip(), "repair with: python -m tests.benchmarks.trainers"
    assert f"{trainers.MAX_OPEN} partitions" in page
    assert f"({trainers.SHARED_CONNECTIONS} + partitions of each)" in page


def test_the_readmes_example_is_twenty_lines() -> None:
    assert len(readme_example().splitlines()) == 20


@pytest.mark.slow
def test_the_readme_shows_the_output_of_its_example_and_the_history_after_it(tmp_path: Path) -> None:
    first, last = run_python(readme_example(), tmp_path).splitlines()
    assert re.fullmatch(r"ro-[0-9a-f]{12} \['succeeded'\]", first)
    assert last == "the tables are what the log says: True"
    rollout_id = first.split()[0]
    (example,) = [block.text for block in BLOCKS if block.page == "README.md" and "$ rollbook history" in block.text]
    typed, _, printed = example.partition("\n")
    command = typed.removeprefix("$ ").replace(re.findall(r"ro-[0-9a-f]{12}", typed)[0], rollout_id)
    assert without_accidents(printed) == without_accidents(on_a_terminal(command, tmp_path))


def without_accidents(text: str) -> list[str]:
    """The lines of an output, with all times and ids made equal."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", "TIME", text)
    text = re.sub(r"\b(ro|at|rs)-[0-9a-f]+\b", r"\1-ID", text)
    return [line.rstrip() for line in text.strip().splitlines()]


def commands() -> dict[str, Any]:
    top: Any = get_command(app)
    context = Context(top)
    return {name: top.resolve_command(context, [name])[1] for name in top.commands}


def typed_commands() -> Iterator[tuple[str, str]]:
    """Yield each call of the command that the pages show, and where."""
    for path in PAGES:
        for name in code(path):
            if name.startswith("rollbook "):
                yield page_id(path), name
    for block in BLOCKS:
        if block.language == "console":
            for line in block.text.splitlines():
                if line.startswith("$ rollbook "):
                    yield block_id(block), line.removeprefix("$ ")


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    options_of = commands()
    for place, typed in typed_commands():
        words = shlex.split(typed)[1:]
        assert words[0] in options_of or words[0].startswith("--"), f"{place}: {typed}"
        if words[0] in options_of:
            command = options_of[words.pop(0)]
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            used = {word.partition("=")[0] for word in words if word.startswith("-")}
            assert used <= options, f"{place}: {typed}"


def test_every_command_is_described() -> None:
    described = set(re.findall(r"^\| `rollbook ([\w-]+)` \|", (ROOT / "docs/commands.md").read_text(), re.MULTILINE))
    assert described == set(commands())
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in commands() if f"`{name}`" not in changelog] == []


def test_every_kind_that_can_be_listed_is_named() -> None:
    (row,) = [line for line in DOCS.splitlines() if line.startswith("| `rollbook ls` |")]
    assert set(re.findall(r"`(\w+)`", row)) == set(commands()["ls"].commands)


def test_the_exit_codes_are_those_of_the_command() -> None:
    assert (OK, USAGE, NOT_INTACT, UNAVAILABLE, NOT_FOUND) == (0, 2, 3, 4, 5)
    told = "Exit codes: 0 ok, 1 error, 2 usage, 3 the database does not match its log, 4 unavailable, 5 not found"
    assert told in re.sub(r"\s+", " ", DOCS)
    assert f"{told}." == app.info.epilog


def test_every_target_of_make_that_is_shown_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    codes = {name for path in PAGES for name in code(path)} | {
        line.removeprefix("$ ") for block in BLOCKS for line in block.text.splitlines() if line.startswith("$ make")
    }
    used = {name.split()[1] for name in codes if name.startswith("make ")}
    assert used
    assert used <= targets


def test_every_option_of_a_url_is_described_and_no_other() -> None:
    page = (ROOT / "docs/stores.md").read_text()
    described = set(re.findall(r"^\| `\?(\w+)=", page, re.MULTILINE))
    assert described == set().union(*vars(url)["_OPTIONS"].values(), postgres_url.OPTIONS - postgres_url.DRIVER_OPTIONS)
    (sentence,) = re.findall(r"^(`host`.*?) go to\s+the Postgres driver", page, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == postgres_url.DRIVER_OPTIONS


def test_every_url_that_is_shown_is_one() -> None:
    texts = [name for path in PAGES for name in code(path)] + [block.text for block in BLOCKS]
    store_url = {
        store_url for text in texts for store_url in re.findall(r"(?:memory|sqlite|postgresql)://[^\s'\"`]*", text)
    }
    assert len(store_url) > 4
    for address in store_url:
        if "…" not in address:
            url.parse(address)


def test_every_scheme_is_described() -> None:
    page = (ROOT / "docs/stores.md").read_text()
    assert [scheme for scheme in (*vars(url)["_OPTIONS"], "postgresql") if f"`{scheme}://" not in page] == []


def test_every_variable_of_the_environment_is_described_and_no_other() -> None:
    sources = [path.read_text() for path in (ROOT / "store").rglob("*.py") if "examples" not in path.parts]
    read = {name for source in sources for name in re.findall(r"\"(ROLLBOOK_[A-Z_]+)\"", source)}
    read |= {f"{name}_FILE" for name in SECRETS}
    # Each option has a variable; the pages name three of them. tests/cli/test_configuration.py sets some.
    read |= {"ROLLBOOK_SERVE_PORT", "ROLLBOOK_SERVE_QUOTA", "ROLLBOOK_KEYS_CREATE_ROLE"}
    assert set(re.findall(r"ROLLBOOK_[A-Z]+(?:_[A-Z]+)*", DOCS)) == read


def test_every_setting_of_open_store_is_described() -> None:
    page = (ROOT / "docs/stores.md").read_text()
    settings = {
        name: parameter.default
        for name, parameter in inspect.signature(store.open_store).parameters.items()
        if name not in {"url", "clock"}
    }
    (arguments,) = re.findall(r"`open_store\(url, ([^)]*)\)`", page)
    assert arguments == ", ".join(f"{name}={default}" for name, default in settings.items())
    assert all(f"`{name}" in page.partition("`open_store(url,")[2] for name in settings)


def test_every_reserved_key_of_metadata_is_described() -> None:
    page = (ROOT / "docs/compatibility.md").read_text()
    public = {f"rollbook.{name}" for name in public_names(store)}
    keys = {name for name in re.findall(r"`(rollbook\.\w+)`", page) if name not in public and find_spec(name) is None}
    assert keys == set(RESERVED_METADATA)


def test_every_type_of_event_is_described_and_no_other() -> None:
    section = (ROOT / "docs/log.md").read_text().partition("## Event types")[2].partition("\n## ")[0]
    described = re.findall(r"^\| `(\w+\.\w+)` \|", section, re.MULTILINE)
    assert sorted(described) == sorted(FACTS)


def test_every_event_type_that_is_mentioned_exists() -> None:
    # Other names that begin with `store.` are methods and modules.
    kinds = "|".join({name.split(".")[0] for name in FACTS} - {"store"})
    is_type = re.compile(rf"({kinds})\.\w+|store\.\w+_dropped").fullmatch
    for path in PAGES:
        for name in code(path):
            if is_type(name) and not hasattr(SyncStore, name.split(".")[1]):
                assert name in FACTS, f"{page_id(path)}: {name}"


def test_the_columns_of_an_event_are_described_and_no_other() -> None:
    table = (ROOT / "docs/log.md").read_text().partition("| column of `events` |")[2].partition("\n\n")[0]
    described = [name for row in re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE) for name in code_of(row)]
    assert sorted(described) == sorted(column.name for column in core_tables.events.columns)


def code_of(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_the_cursor_is_described_as_it_is() -> None:
    async def cursor() -> str:
        async with await store.open_store("memory://") as opened:
            await opened.enqueue_rollout(1)
            return [event.cursor async for event in opened.log.tail()][-1]

    (described,) = [name for name in code(ROOT / "docs/log.md") if name.startswith("1.<")]
    fields = re.sub(r"<[^>]+>", "X", described)
    assert fields.count(".") == asyncio.run(cursor()).count(".")


def test_every_error_is_described_with_the_builtin_it_is() -> None:
    page = (ROOT / "docs/errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert {name for name, _ in rows} == set(errors.__all__) - {"StoreError"}
    for name, parents in rows:
        error: type = getattr(errors, name)
        assert all(parent in {base.__name__ for base in error.__mro__} for parent in code_of(parents)), name


def test_every_name_of_the_api_that_is_mentioned_exists() -> None:
    names = {
        *public_names(store),
        *public_names(models),
        *public_names(training),
        *collections.__all__,
        *(name for name in dir(SyncStore) if not name.startswith("_")),
        *(name for name, _ in inspect.getmembers(store.Store)),
        *("RollbookSaver", "pointer", "pointer_to_phase_end", "start_from", *dir(RollbookSaver), *dir(SQLThreads)),
    }
    builtin = {name for name in vars(builtins) if name[0].isupper()}
    # Agent-lightning's, in the page that compares.
    theirs = listed()
    ports = {"DelegatingStore", "Dialect", "StoreContract", "ManualClock", "RollbookStore", "StoreServer"}
    comparing = {"compatibility.md", "agent-lightning.md", "CHANGELOG.md"}
    for path in PAGES:
        for name in code(path):
            word = name.split("(")[0]
            if re.fullmatch(r"[A-Z][a-z]+[A-Za-z]*", word):
                allowed = names | builtin | ports | (theirs if path.name in comparing else set[str]())
                assert word in allowed, f"{page_id(path)}: {name}"
            if re.fullmatch(r"[a-z_]+\(.*\)", name):
                assert word in names | {"open_store", "atomic"}, f"{page_id(path)}: {name}"


def test_every_argument_that_is_shown_with_a_method_exists() -> None:
    for path in PAGES:
        for name in code(path):
            called = re.fullmatch(r"(?:(log|runs|annotations|threads)\.)?(\w+)\((.*)\)", name)
            if called is None:
                continue
            part, method, arguments = called.groups()
            kind = PARTS.get(part, store.Store)
            if part or hasattr(kind, method):
                keywords = set(re.findall(r"(\w+)=", arguments))
                assert keywords <= set(inspect.signature(getattr(kind, method)).parameters), name


def test_every_way_to_add_a_backend_is_the_one_the_page_shows() -> None:
    page = (ROOT / "docs/backends.md").read_text()
    for module, name in (("store.db.dialect", "Dialect"), ("store.db.dialect", "register"), ("store", "Store")):
        assert name in page
        assert hasattr(import_module(module), name)
    plain = len((ROOT / "tests/backends/plain_sqlite.py").read_text().splitlines())
    assert 150 < plain < 250


def test_the_limits_in_the_pages_are_those_of_the_code() -> None:
    from store.journal import as_at
    from store.sql.commands import spans as span_commands
    from store.validation import json_limits

    assert json_limits.MAX_CALL_ITEMS == 10_000
    assert json_limits.MAX_CALL_BYTES == 16 * 1024 * 1024
    assert span_commands.MAX_SPAN_NAME_BYTES == 1024
    assert span_commands.MAX_STATUS_MESSAGE == 200
    assert as_at.FOLD_LIMIT == 5000
    for told in ("10,000 items", "16 MiB", "512 bytes", "1 KiB"):
        assert told in DOCS
