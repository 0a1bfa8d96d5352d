"""The scripts that count structure find what is planted, and measure calls as they are made."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from store.interface.runs import StoreRuns
from store.interface.store import Store
from tests.structure import __main__ as structure
from tests.structure.__main__ import LIMITS, depth, methods, of_calls, of_classes, of_source
from tests.structure.calls import measured
from tests.structure.counts import (
    CALLS,
    QUERIES,
    class_tests,
    code_lines,
    loose_modules,
    places,
    places_of_call,
    shared_class_names,
)
from tests.structure.cycles import cycles
from tests.structure.functions import functions, private_functions
from tests.structure.names import avoided_bindings, avoided_test_names
from tests.structure.rows import positional_reads
from tests.structure.source import Source


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The directory of a package that has no modules yet."""
    directory = tmp_path / "planted"
    directory.mkdir()
    (directory / "__init__.py").touch()
    return directory


def plant(package: Path, texts: dict[str, str]) -> Source:
    """Write modules, given by their paths without `.py`, and parse the package."""
    for name, text in texts.items():
        path = package / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Source.of(package)


@pytest.mark.parametrize(
    "back",
    [
        "import planted.one",
        "from planted import one",
        "from planted.one import name",
        "from . import one",
        "from .one import name",
        "def f():\n    from planted import one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planted.one import name",
        "import importlib\nimportlib.import_module('planted.one')",
        "from importlib import import_module\nimport_module('planted.one')",
        "LATE = {'name': 'planted.one'}",
    ],
)
def test_a_cycle_is_found_whatever_closes_it(package: Path, back: str) -> None:
    texts = {"one": "from planted import two", "two": back, "three": "import planted.one, planted.two"}
    assert cycles(plant(package, texts)) == [["planted.one", "planted.two"]]


def test_an_import_of_a_package_is_one_of_its_init(package: Path) -> None:
    texts = {"inner/__init__": "from planted.inner.deep import name", "inner/deep": "name = 1"}
    assert cycles(plant(package, {**texts, "outer": "from planted.inner import name"})) == []
    texts["inner/deep"] = "from planted.inner import other"
    assert cycles(plant(package, texts)) == [["planted.inner", "planted.inner.deep"]]
    # An import of another module of the package is none of the package.
    texts["inner/deep"] = "from planted.inner import second"
    assert cycles(plant(package, {**texts, "inner/second": ""})) == []


def test_a_cycle_through_a_stub_is_reported(package: Path) -> None:
    (package / "two.pyi").write_text("from planted.one import name as name")
    assert cycles(plant(package, {"one": "from planted import two", "two": ""})) == [["planted.one", "planted.two"]]


def test_other_strings_import_nothing(package: Path) -> None:
    two = "import logging\nlogging.getLogger('planted.one')\nNAME = 'planted.one'"
    assert cycles(plant(package, {"one": "from planted import two", "two": two})) == []


def test_only_modules_that_are_no_packages_are_loose(package: Path) -> None:
    source = plant(package, {"one": "", "inner/__init__": "", "inner/deep": ""})
    assert loose_modules(source) == ["planted.one"]


def test_lines_that_run_are_code(package: Path) -> None:
    documented = '"""Docs,\nof two lines."""\n\n# why\nvalue = (\n    1,  # because\n)\n"""Docs of the value."""\n'
    assert code_lines(plant(package, {"one": documented})) == 3
    assert code_lines(plant(package, {"one": documented + 'text = """\ntwo"""\n'})) == 5


def test_a_class_name_is_shared_by_several_modules(package: Path) -> None:
    one = "class Same: ...\nclass _Private: ...\nclass Own: ...\nclass Own: ..."
    source = plant(package, {"one": one, "two": "class _Private: ...\ndef f():\n    class Same: ..."})
    assert shared_class_names(source) == {"Same": ["planted.one", "planted.two"]}
    assert shared_class_names(source.without("planted.two")) == {}


def test_a_place_is_whatever_names_enough_arguments(package: Path) -> None:
    names = "trace_id", "trace_id_contains", "span_id", "span_id_contains", "parent_id"
    fields = "".join(f"    {name}: str\n" for name in names)
    keywords = ", ".join(f"{name}={name}" for name in names)
    texts = {
        "a": f"class Query:\n{fields}",
        "b": f"def find({', '.join(names)}):\n    return Query({keywords})",
        "c": f"def find({', '.join(names)}):\n    return other({keywords})",
        "d": f"found = Query({keywords})",
        "e": f"found = {{{', '.join(f'{name!r}: 1' for name in names)}}}",
        "f": f"def too_few({', '.join(names[1:])}): ...",
    }
    assert places(plant(package, texts), "query_spans") == [
        "planted.a:1 class Query",
        "planted.b:1 def find",
        "planted.c:1 def find",
        "planted.c:2 other(…)",
        "planted.d:1 Query(…)",
        "planted.e:1 {…}",
    ]


def test_a_use_of_a_call_is_no_place(package: Path) -> None:
    names = "input", "mode", "resources_id", "config", "metadata"
    fields = "".join(f"    {name}: str\n" for name in names)
    keywords = ", ".join(f"{name}={name}" for name in names)
    pairs = ", ".join(f"{name!r}: 1" for name in names)
    texts = {
        "a": f"class Call:\n{fields}",
        "b": f"def enqueue_rollout({', '.join(names)}):\n    return Call({keywords})",
        "c": f"store.enqueue_rollout({keywords})\nCall.model_validate({{{pairs}}})",
        "d": f"send({keywords})\nsend({{{pairs}}})",
        "e": f"def start_rollout({', '.join(names)}, worker_id): ...",
    }
    assert places_of_call(plant(package, texts), "enqueue_rollout") == [
        "planted.a:1 class Call",
        "planted.b:1 def enqueue_rollout",
        "planted.d:1 send(…)",
        "planted.d:2 {…}",
    ]


@pytest.mark.parametrize("call", CALLS)
def test_the_arguments_of_a_call_are_those_of_its_method(call: str) -> None:
    names, least, others = CALLS[call]
    parameters = {*inspect.signature(getattr(Store, call, None) or getattr(StoreRuns, call)).parameters}
    assert names <= parameters
    assert not others & parameters
    assert least <= len(names)


@pytest.mark.parametrize("query", QUERIES)
def test_the_arguments_that_are_looked_for_are_those_of_the_query(query: str) -> None:
    method = getattr(Store, query)
    names, least = QUERIES[query]
    assert names <= set(method.__kwdefaults__)
    assert least <= len(names)


def test_a_use_of_a_private_function_is_a_mention_in_its_module(package: Path) -> None:
    text = (
        "def _once(): ...\ndef _twice(): ...\ndef _unused(): ...\ndef __never__(): ...\n"
        "def public():\n    def _nested(): ...\n    return _once(), _twice(), _nested()\n"
        "class Store:\n    def _method(self): return _twice\n    def method(self): return self._method()\n"
    )
    source = plant(package, {"one": text, "two": "from planted.one import _once\n_once()"})
    private = private_functions(source)
    names = [label.rpartition(" ")[2] for label in private.with_one_use]
    assert (private.total, sorted(names)) == (5, ["_method", "_nested", "_once"])
    assert private.percentage == 60
    assert private_functions(source.without("planted")).percentage == 0


def test_lines_and_parameters_of_a_function(package: Path) -> None:
    text = (
        "@decorated\ndef one(a, /, b, *rest, c, d=lambda x: x, **others):\n    '''Docs.'''\n    async def two(): ...\n"
    )
    counts = {one.label: (one.lines, one.parameters) for one in functions(plant(package, {"module": text}))}
    assert counts == {"planted.module:2 one": (3, 6), "planted.module:4 two": (1, 0)}
    assert structure.most({"short": 1, "long": 3}) == structure.Figure(3, ["3 long", "1 short"])


def test_a_class_is_asked_for_by_isinstance_and_by_a_pattern(package: Path) -> None:
    texts = {
        "one": "isinstance(store, Store)",
        "two": "isinstance(store, (Other, sql.Store))",
        "three": "isinstance(store, Other | Store)",
        "four": "match store:\n    case Store(): ...",
        "five": "issubclass(kind, Store)\nisinstance(Store(), Other)\nstore: Store",
    }
    source = plant(package, texts)
    assert class_tests(source, "Store") == ["planted.four:2", "planted.one:1", "planted.three:1", "planted.two:1"]


def test_bindings_of_avoided_names(package: Path) -> None:
    text = "found = 1\nfor each, row in rows: ...\ndef f(given): return [known for known in rows]\nprint(found, own)\n"
    labels = avoided_bindings(plant(package, {"one": text, "two": "x.made = 1\nf(shown=1)\nfoundry = 1"}))
    assert sorted(labels) == ["planted.one:1 found", "planted.one:2 each", "planted.one:3 given", "planted.one:3 known"]


@pytest.mark.parametrize(
    "text, reads",
    [
        ("row[0]", ["row[0]"]),
        ("row[_NAME], row[_WIDTH + 1]", ["row[_NAME]", "row[_WIDTH + 1]"]),
        ("run_row[-1], rows[-1][2:]", ["rows[-1][2:]", "run_row[-1]"]),
        ("(await session.fetch(sql, {}))[0][0]", ["(await session.fetch(sql, {}))[0][0]"]),
        ("a, b = row\n(a, b), one = row", ["(a, b)", "((a, b), one)"]),
        ("Event(*row), (key, *row)", ["*row", "*row"]),
        ("for a, b, c in rows: ...", ["(a, b, c)"]),
        ("{a: c async for a, b, c in await session.fetch(sql, {})}", ["(a, b, c)"]),
    ],
)
def test_rows_read_by_position(package: Path, text: str, reads: list[str]) -> None:
    labels = positional_reads(plant(package, {"one": f"async def f():\n    {text}".replace("\n(", "\n    (")}))
    assert [label.partition(" ")[2] for label in labels] == reads


@pytest.mark.parametrize(
    "text",
    [
        "row.name, rows[0].name, rows[-1]",
        "row['name'], values[0], row[name]",
        "row[0] = row[NAME] = 1",
        "(only,) = rows",
        "a, *rest = values",
        "for a, b in rows: ...",
        "for a, b, c in values: ...",
        "*row, b = values",
    ],
)
def test_rows_read_by_name(package: Path, text: str) -> None:
    assert positional_reads(plant(package, {"one": text})) == []


def test_test_functions_with_avoided_words(package: Path) -> None:
    names = ["test_what_is_read", "test_a_user_who_waits", "test_somewhat_whole", "what", "test_rows_are_read"]
    text = "\n".join(f"def {name}(): ..." for name in names)
    source = plant(package, {"one": f"{text}\nclass T:\n    async def test_nobody_waits(self): ..."})
    assert [label.rpartition(" ")[2] for label in avoided_test_names(source)] == [*names[:2], "test_nobody_waits"]


def test_depth_and_methods_include_inherited_ones() -> None:
    class Own(Store):
        def extra(self) -> None: ...

    # This class is not of the package; the interface and what it is made of are.
    assert depth(Own) == []
    assert depth(Store)[0] == "Store"
    assert {"add_span", "sync", "capabilities", "__aenter__"} <= set(methods(Own))
    assert "extra" not in methods(Own)


def test_a_call_passes_the_functions_between_the_method_and_the_driver() -> None:
    passed = measured()
    assert passed.keys() == {"add_span", "get_rollout_by_id", "query_rollouts"}
    for name, each in passed.items():
        assert [function for function in each.functions if function.endswith(f" {name}")], each.functions
        assert all(file.startswith("store/") for file in each.files)
        assert all(
            hop.rpartition(".")[2] in {function.rpartition(" ")[2] for function in each.functions} for hop in each.hops
        )
    for read in ("get_rollout_by_id", "query_rollouts"):
        first, *between, last = passed[read].hops
        assert first.endswith(f".{read}")
        assert between
        # The last one is in a driver.
        name = last.rpartition(".")[2]
        assert [each for each in passed[read].functions if each.endswith(f" {name}") and "/drivers/" in each]


@pytest.mark.slow
def test_every_figure_has_a_line_in_the_table_and_a_limit_no_lower_than_its_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The names of the figures do not depend on the source. `make check` counts the real one.
    (tmp_path / "store").mkdir()
    (tmp_path / "store/__init__.py").touch()
    monkeypatch.setattr(structure, "ROOT", tmp_path)
    assert (of_source() | of_classes() | of_calls()).keys() == LIMITS.keys()
    for limit, goal in LIMITS.values():
        assert limit is None or goal is None or limit >= goal
