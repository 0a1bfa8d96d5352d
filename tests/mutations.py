"""Seeded faults: change one expression of the product at a time, and report the test of a suite that fails.

    python -m tests.mutations --seed 1 --count 60 --result faults.jsonl
    python -m tests.mutations --seed 1 --count 60 --suite OTHER --missed faults.jsonl --result other.jsonl

The second call runs the tests of another checkout on the faults that the first call did not find. Each fault is applied
to a copy of this checkout's `store/`, beside the tests of the suite. The tests of the domain and the contract on SQLite
run first, then those of the folder, then all others, and each stage ends at the first failure.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
_QUICK = ["tests/domain", "tests/contract/test_contract.py", "-m", "not benchmark and not postgres and not http"]
FOLDERS = ("domain", "journal", "sql", "server", "operations")
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
"""The operator that takes the place of each operator."""
_NOT_NUMBERS = ast.Constant | ast.JoinedStr | ast.List
_SECONDS = 3_600
"""A stage that takes longer has found the fault: something hangs. The last stage without workers takes 20 minutes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of one expression."""

    number: int
    path: str
    """Relative to the root."""
    line: int
    start: int
    end: int
    """Where the old text is in the file, in characters."""
    old: str
    new: str

    def __str__(self) -> str:
        one_line = " ".join(f"{self.old!r} → {self.new!r}".split())
        return f"{self.path}:{self.line}  {one_line}"


def candidates(path: Path) -> list[tuple[int, int, int, str, str]]:
    """Return the possible faults of a file: line, start, end, old text, new text."""
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def text(node: ast.expr | ast.stmt) -> tuple[int, int, str]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        return start, end, source[start:end]

    places: set[tuple[int, int, int, str, str]] = set()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in _executed(function):
            for part, new in _changes(node, lambda part: text(part)[2]):
                start, end, old = text(part)
                places.add((part.lineno, start, end, old, new))
    return sorted(places)


def _executed(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes of a function's body that run: no annotations, no messages of errors, no logging."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Raise | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[0] in {"logger", "_logger", "log", "cast"}:
            continue
        if isinstance(node, ast.expr | ast.stmt) and not any(
            isinstance(part, ast.NamedExpr) for part in ast.walk(node)
        ):
            yield node
        if isinstance(node, ast.AnnAssign):
            stack += [node.value] if node.value is not None else []
        else:
            stack += ast.iter_child_nodes(node)


def _changes(node: ast.expr | ast.stmt, text: Callable[[ast.expr], str]) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the faults of a node: the part that is replaced, and its new text."""
    match node:
        case ast.If(test=test):
            yield test, f"not ({text(test)})"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.expr():
            yield from ((node, new) for new in _operations(node, text))
        case _:
            return


def _operations(node: ast.expr, text: Callable[[ast.expr], str]) -> Iterator[str]:
    """Yield the text of an expression with another operator."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
            yield f"{text(left)} {_COMPARISONS[type(operator)]} {text(right)}"
        case ast.BoolOp(op=operator, values=[left, right]):
            yield f"({text(left)} {'or' if isinstance(operator, ast.And) else 'and'} {text(right)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"bool({text(operand)})"
        case ast.BinOp(left=left, op=ast.Add(), right=right) if not isinstance(right, _NOT_NUMBERS):
            yield f"({text(left)} - {text(right)})"
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield f"({text(left)} + {text(right)})"
        case ast.IfExp(test=test, body=body, orelse=other):
            yield f"({text(other)} if {text(test)} else {text(body)})"
        case _:
            return


def choose(seed: int, count: int) -> list[Fault]:
    """Return faults of all folders, in as many files as possible. The same seed gives the same faults."""
    faults: list[Fault] = []
    for index, folder in enumerate(FOLDERS):
        draw = random.Random(f"{seed}/{folder}")
        files = sorted((ROOT / "store" / folder).rglob("*.py"))
        number = count // len(FOLDERS) + (index < count % len(FOLDERS))
        chosen: set[tuple[str, int]] = set()
        pool = [path for path in files if candidates(path)]
        turns: list[Path] = []
        while len(chosen) < number:
            turns = turns or draw.sample(pool, len(pool))
            path = turns.pop()
            line, start, end, old, new = draw.choice(candidates(path))
            relative = str(path.relative_to(ROOT))
            if (relative, line) not in chosen:
                chosen.add((relative, line))
                faults.append(Fault(len(faults) + 1, relative, line, start, end, old, new))
    return faults


def stages(fault: Fault, suite: Path) -> list[list[str]]:
    """Return the arguments of pytest for each stage of a suite."""
    folder = fault.path.split("/")[1]
    near = {"domain": [], "sql": ["db", "runs", "threads", "machine"], "journal": ["machine"], "server": ["client"]}
    second = [
        f"tests/{name}" for name in [folder, "journal", *near.get(folder, [])] if (suite / "tests" / name).exists()
    ]
    return [_QUICK, list(dict.fromkeys(second)), ["tests", *(f"--ignore={name}" for name in second)]]


class Lane:
    """A copy of the product and of the tests of a suite, to which one fault at a time is applied."""

    def __init__(self, suite: Path, directory: Path) -> None:
        self._root = directory
        for root, names in ((ROOT, ["store", "migrations", "alembic.ini"]), (suite, ["tests", "docs"])):
            for name in names:
                source = root / name
                copy = shutil.copytree if source.is_dir() else shutil.copy
                copy(source, directory / name)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".gitignore"):
            shutil.copy(suite / name, directory / name)

    def run(self, fault: Fault, workers: int, last_stage: int) -> dict[str, Any]:
        """Apply a fault, run the stages until a test fails, and take the fault back."""
        path = self._root / fault.path
        source = path.read_text()
        assert source[fault.start : fault.end] == fault.old
        path.write_text(source[: fault.start] + fault.new + source[fault.end :])
        try:
            for stage, arguments in enumerate(stages(fault, self._root)[:last_stage], 1):
                test = self._first_failure(arguments, workers)
                if test is not None:
                    return asdict(fault) | {"stage": stage, "test": test}
        finally:
            path.write_text(source)
        return asdict(fault) | {"stage": 0, "test": ""}

    def _first_failure(self, arguments: list[str], workers: int) -> str | None:
        environment = os.environ | {"PYTHONPATH": str(self._root)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", str(workers), "--dist", "loadgroup"]
        try:
            done = subprocess.run(
                [*command, *arguments],
                check=False, capture_output=True, text=True, cwd=self._root, env=environment, timeout=_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "(a test hangs)"
        if done.returncode in {0, 5}:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return failed[1] if failed else f"(pytest ends with {done.returncode})"

    def check(self, workers: int) -> None:
        """Raise SystemExit if the first stage fails without a fault."""
        test = self._first_failure(_QUICK, workers)
        if test is not None:
            raise SystemExit(f"without a fault, the suite fails: {test}")


def main() -> None:
    """Run the faults, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--suite", type=Path, default=ROOT, help="the checkout whose tests run")
    parser.add_argument("--missed", type=Path, help="run only the faults that this result did not find")
    parser.add_argument(
        "--result", type=Path, required=True, help="a JSON line for each fault; a new call continues it"
    )
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--stages", type=int, default=3, help="stop after this stage; the third takes the longest")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    options = parser.parse_args()
    faults = choose(options.seed, options.count)
    if options.list:
        print(*faults, sep="\n")
        return
    if options.missed:
        missed = {row["number"] for row in _rows(options.missed) if not row["stage"]}
        faults = [fault for fault in faults if fault.number in missed]
    done = {row["number"] for row in _rows(options.result)}
    with tempfile.TemporaryDirectory() as directory, options.result.open("a") as result:
        lanes: SimpleQueue[Lane] = SimpleQueue()
        for number in range(options.lanes):
            path = Path(directory, str(number))
            path.mkdir()
            lane = Lane(options.suite.resolve(), path)
            if number == 0:
                lane.check(options.workers)
            lanes.put(lane)

        def run(fault: Fault) -> None:
            lane = lanes.get()
            try:
                row = lane.run(fault, options.workers, options.stages)
            finally:
                lanes.put(lane)
            print(json.dumps(row), file=result, flush=True)
            print(f"{fault.number:3}  {row['test'] or 'NOT FOUND'}  {fault}", flush=True)

        with ThreadPoolExecutor(options.lanes) as pool:
            list(pool.map(run, [fault for fault in faults if fault.number not in done]))
    rows = _rows(options.result)
    print(f"{sum(bool(row['stage']) for row in rows)} of {len(rows)} faults found")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
