"""Optional features: the folders and modules to delete, and the lines of the other modules that name them.

After the deletion, an option or an argument of the feature is refused where a user gives it.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.recipes.scratch import Scratch


@dataclass(frozen=True, slots=True)
class Line:
    """An edit of lines that name a feature."""

    path: str
    old: str
    """The lines, which occur once."""
    new: str = ""


@dataclass(frozen=True, slots=True)
class Feature:
    """A part of the product that can be deleted."""

    name: str
    paths: Sequence[str]
    """Folders and modules."""
    lines: Sequence[Line] = ()
    users: Sequence[Feature] = ()
    """Features that use this one, and are deleted with it."""

    def remove(self, scratch: Scratch) -> None:
        """Delete the feature from a copy."""
        for user in self.users:
            user.remove(scratch)
        for path in self.paths:
            target = scratch.root / path
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink()
        for line in self.lines:
            scratch.replace(line.path, line.old, line.new)

    @property
    def price(self) -> int:
        """The number of lines outside of the feature that name it."""
        return sum(line.old.count("\n") for line in self.lines)


def dangling_imports(root: Path) -> Iterator[str]:
    """Yield the imports of modules that do not exist, in the product below a directory."""
    for path in sorted((root / "store").rglob("*.py*")):
        if path.suffix in {".py", ".pyi"}:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("store."):
                    place = root.joinpath(*str(node.module).split("."))
                    if not _exists(place):
                        yield f"{path.relative_to(root)}: {node.module}"
                    elif place.is_dir() and not (place / "__init__.pyi").exists():
                        names = _names(place / "__init__.py")
                        for alias in node.names:
                            if alias.name not in names and not _exists(place / alias.name):
                                yield f"{path.relative_to(root)}: {node.module}.{alias.name}"


def _exists(module: Path) -> bool:
    return (module / "__init__.py").exists() or module.with_suffix(".py").exists()


def _names(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
    return names


COLLECTIONS = Feature("store on collections", ["store/integrations/collections"])
STRICT_ADAPTERS = Feature(
    "strict adapters",
    ["store/adapters/strict.py"],
    [
        Line("store/adapters/triplets.py", "from store.adapters import strict\n"),
        Line(
            "store/adapters/triplets.py",
            "            return AdaptReport("
            "strict.from_tracer(source, self._rules, self._policy, repairs=self._repairs), [], [])\n",
            '            raise Invalid("strict_upstream", "is not part of this package")\n',
        ),
        Line(
            "store/adapters/triplets.py",
            "            return AdaptReport(strict.from_proxy(source), [], [])\n",
            '            raise Invalid("strict_upstream", "is not part of this package")\n',
        ),
    ],
)
TRADING = Feature(
    "trading example",
    ["store/examples/trading", "store/cli/commands/trading.py"],
    [
        Line("store/cli/example_parts.py", '    "trading": "store.examples.trading.desk:pipeline",\n'),
        Line(
            "store/cli/example_parts.py",
            "    from store.examples.trading.front_end.settings import TradingSettings\n"
            "    from store.examples.trading.front_end.trading_front_end import TradingFrontEnd\n"
            "\n"
            "    return TradingFrontEnd(TradingSettings(**settings))\n",
            "    from store.server.streaming.front_end import FrontEnd\n\n    return FrontEnd()\n",
        ),
    ],
)
FALLBACK = Feature(
    "fallback of pipelines",
    ["store/pipelines/fallback"],
    [
        Line(
            "store/pipelines/pipeline_runner.py",
            "from store.pipelines.fallback.fallback_store import PATIENCE_SECONDS, EndedAttempts, FallbackStore\n",
        ),
        Line(
            "store/pipelines/pipeline_runner.py",
            "        fallback_patience: float = PATIENCE_SECONDS,\n",
            "        fallback_patience: float = 0.0,\n",
        ),
        Line(
            "store/pipelines/pipeline_runner.py",
            "        self._fallback: FallbackStore | None = None\n",
            "        self._fallback: Any = None\n",
        ),
        Line(
            "store/pipelines/pipeline_runner.py",
            "        fallback = FallbackStore(store, self._fallback_dir, patience=self._fallback_patience)\n"
            "        async with fallback.working():\n"
            "            self._fallback = fallback\n"
            "            hooks = [EndedAttempts(fallback)]\n"
            "            try:\n"
            "                with self.run_context(agent=agent, store=fallback, hooks=hooks, worker_id=worker_id):\n"
            "                    yield\n"
            "            finally:\n"
            "                self._fallback = None\n",
            '        raise Invalid("fallback_dir", "is not part of this package")\n',
        ),
    ],
)
RUN_FOLDERS = Feature(
    "run folders",
    ["store/run_folders", "store/cli/commands/folders.py"],
    [
        Line(
            "store/cli/commands/runs.py",
            "            if fallback is None:\n"
            "                raise\n"
            "            from store.run_folders.listing import listed_runs\n"
            "\n"
            '            note(f"the store is unavailable, so these are the run folders below {fallback}: {error}")\n'
            "            rows = listed_runs(fallback)[:limit]\n"
            "            if json:\n"
            "                json_document(rows)\n"
            "            else:\n"
            "                print_table(_FOLDERS, rows)\n",
            "            raise\n",
        ),
    ],
    users=[FALLBACK, TRADING],
)
FEATURES = (COLLECTIONS, STRICT_ADAPTERS, TRADING, FALLBACK, RUN_FOLDERS)
