"""Carry out each recipe of docs/architecture.md on a scratch copy and test it: `python -m tests.recipes [NAME…]`.

Of each change the product files it touches are counted against a limit. Its own tests and the contract suite on SQLite
run on the copy. Each optional feature is deleted from a copy, whose contract suite must still pass. Exits with 1 if a
limit is passed or a test fails.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.recipes import changing_call, cli_command, dashboard_page, event_type, query_filter, queue_field, sql_dialect
from tests.recipes.removals import FEATURES, Feature, dangling_imports
from tests.recipes.scratch import Recipe, Scratch

RECIPES = (
    query_filter.RECIPE,
    event_type.RECIPE,
    changing_call.RECIPE,
    dashboard_page.RECIPE,
    cli_command.RECIPE,
    sql_dialect.OUTSIDE,
    sql_dialect.INSIDE,
    queue_field.RECIPE,
)
_CONTRACT = ("tests/contract", "-m", "not postgres and not http and not repeat and not slow")


def carry_out(recipe: Recipe, directory: Path) -> Scratch:
    """Return a copy of the repository with the change in it, and its test."""
    scratch = Scratch(directory)
    recipe.apply(scratch)
    tests = scratch.root / "tests" / "of_recipe"
    tests.mkdir()
    (tests / "test_recipe.py").write_text(recipe.test)
    return scratch


def remove(feature: Feature, directory: Path) -> Scratch:
    """Return a copy of the repository without a feature."""
    scratch = Scratch(directory)
    feature.remove(scratch)
    return scratch


def main(names: list[str]) -> int:
    """Carry out the recipes whose names contain one of the given texts, all if none is given."""
    failed = False
    for recipe in RECIPES:
        if names and not any(name in recipe.name for name in names):
            continue
        with tempfile.TemporaryDirectory(prefix="rollbook-recipe-") as directory:
            scratch = carry_out(recipe, Path(directory))
            files = scratch.changed()
            print(f"{recipe.name}: {len(files)} files of at most {recipe.most_files}", *files, sep="\n  ", flush=True)
            passed = all(not scratch.test(arguments) for arguments in (["tests/of_recipe"], _CONTRACT))
        failed |= len(files) > recipe.most_files or not passed
    for feature in FEATURES:
        if names and not any(name in feature.name for name in names):
            continue
        with tempfile.TemporaryDirectory(prefix="rollbook-removal-") as directory:
            scratch = remove(feature, Path(directory))
            users = "".join(f", without {user.name}" for user in feature.users)
            print(f"without {feature.name}{users}: {feature.price} lines named it", flush=True)
            failed |= any(dangling_imports(scratch.root)) or bool(scratch.test(_CONTRACT))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
