"""The code of a reward function has a hash that changes with what the function uses."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from store.rescoring.reward_function import RewardReference, ScoreResult, code_sha256

SOURCE = """
LIMIT = 3
def helper(x):
    return x + 1
class Judge:
    def __call__(self, record):
        return helper(1)
def other(record):
    return 5
def reward(record):
    return [helper(x) for x in range(LIMIT)][0]
judge = Judge()
"""


def loaded(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    exec(compile(source, path, "exec"), vars(module))
    return module


def test_hash_covers_the_functions_that_a_function_uses_and_no_others(tmp_path: Path) -> None:
    first = loaded(tmp_path / "one.py", SOURCE)
    same = loaded(tmp_path / "two.py", SOURCE.replace("return 5", "return 6"))
    changed = loaded(tmp_path / "three.py", SOURCE.replace("x + 1", "x + 2"))
    for name in ("reward", "judge"):
        hashes = [code_sha256(getattr(module, name)) for module in (first, same, changed)]
        assert hashes[0] is not None
        assert hashes[0] == hashes[1] != hashes[2]
    assert code_sha256(first.other) != code_sha256(same.other)


def test_compiled_function_has_no_hash() -> None:
    assert code_sha256(len) is None


def test_name_of_a_reward_is_that_of_its_function_or_another() -> None:
    assert str(RewardReference.of("pack.age:Class.method@2026-11").key) == "method@2026-11"
    assert str(RewardReference.of("a:b@v1", "quality").key) == "quality@v1"


@pytest.mark.parametrize("returned", [True, 1, 1.0, {"value": 1}, {"value": 1, "dimensions": {}, "explanation": None}])
def test_numbers_and_mappings_are_results(returned: object) -> None:
    assert ScoreResult.of(returned) == ScoreResult(1.0)


@pytest.mark.parametrize("returned", [None, "1", [1], 1j, {}, {"value": None}, {"value": 1, "dimensions": [1]}])
def test_other_results_are_wrong_types(returned: object) -> None:
    with pytest.raises(TypeError):
        ScoreResult.of(returned)
