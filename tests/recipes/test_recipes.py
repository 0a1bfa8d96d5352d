"""The recipes fit the product and touch few files. `make recipes` also tests the copies that they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.__main__ import RECIPES, carry_out, remove
from tests.recipes.removals import FEATURES, Feature, dangling_imports
from tests.recipes.scratch import Recipe, Scratch


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name.replace(" ", "_"))
@pytest.mark.slow
def test_a_recipe_touches_few_files(recipe: Recipe, tmp_path: Path) -> None:
    changed = carry_out(recipe, tmp_path).changed()
    assert len(changed) <= recipe.most_files, changed


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name.replace(" ", "_"))
@pytest.mark.torture_only
def test_no_module_imports_a_deleted_feature(feature: Feature, tmp_path: Path) -> None:
    assert list(dangling_imports(remove(feature, tmp_path).root)) == []


def test_import_of_a_deleted_module_is_reported(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    (scratch.root / "store/adapters/strict.py").unlink()
    (scratch.root / "store/projections/runs.py").unlink()
    assert {
        "store/adapters/triplets.py: store.adapters.strict",
        "store/projections/rollouts.py: store.projections.runs",
    } <= set(dangling_imports(scratch.root))


def test_changed_and_new_files_of_the_product_are_counted(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert scratch.changed() == []
    scratch.insert("store/errors.py", "from __future__ import annotations\n", "# changed\n")
    scratch.create("migrations/versions/9999_new.py", "")
    scratch.create("tests/new.py", "")
    assert scratch.changed() == ["migrations/versions/9999_new.py", "store/errors.py"]


def test_an_edit_that_no_longer_fits_is_refused(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    with pytest.raises(LookupError, match="0 times"):
        scratch.replace("store/errors.py", "no such text", "")
    with pytest.raises(FileExistsError):
        scratch.create("store/errors.py", "")
