"""Each form of the specification of a component, and the errors of invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import Invalid
from store.training.algorithms.baseline import Baseline
from store.training.components import Components

PATH = "store.training.algorithms.baseline.Baseline"
BASELINES: Components[Baseline] = Components("algorithm", Baseline, registry={"base": PATH})


def epochs(spec: Any, **fill: Any) -> int | None:
    """Return the epochs of what a specification makes."""
    algorithm = BASELINES.build(spec, fill=fill)
    return algorithm and algorithm.n_epochs


def test_an_instance_is_taken_as_it_is() -> None:
    algorithm = Baseline()
    assert BASELINES.build(algorithm, fill={"n_epochs": 9}) is algorithm


def test_a_class_is_made_with_the_defaults_that_it_has_parameters_for() -> None:
    assert epochs(Baseline, n_epochs=3, tracer="no parameter of it") == 3


def test_another_callable_is_called_without_arguments() -> None:
    assert epochs(lambda: Baseline(n_epochs=4), n_epochs=9) == 4


def test_a_string_is_a_short_name_or_a_dotted_path() -> None:
    assert epochs("base", n_epochs=2) == epochs(PATH, n_epochs=2) == 2
    assert epochs("store.training.algorithms.baseline:Baseline") == 1


def test_a_dict_names_its_type_and_its_settings_outrank_the_defaults() -> None:
    assert epochs({"type": PATH, "n_epochs": 5}, n_epochs=9) == 5
    assert epochs({"name": "base"}, n_epochs=9) == 9
    assert epochs({"type": Baseline, "n_epochs": 6}) == 6
    with pytest.raises(Invalid, match="algorithm: the dict names no type"):
        epochs({"n_epochs": 5})
    assert Components[Baseline]("x", Baseline, default_type=Baseline).build({"n_epochs": 7}) is not None


def test_nothing_is_the_default_or_an_error() -> None:
    assert BASELINES.build(None, default=lambda: None) is None
    with pytest.raises(Invalid, match="algorithm: is required"):
        BASELINES.build(None)


def test_unknown_component_is_refused_by_name() -> None:
    cases: list[tuple[Any, str]] = [
        ("bas", r"'bas' is neither a short name \(base\)"),
        ("store.training.nothing.Here", "cannot be imported"),
        ("store.training.algorithms.baseline.Nobody", "cannot be imported"),
        ({"type": 7}, "7 is neither a class"),
        (7, "7 is not a specification"),
    ]
    for spec, text in cases:
        with pytest.raises(Invalid, match=text):
            BASELINES.build(spec)


def test_component_of_another_class_is_a_type_error() -> None:
    for spec in (dict, lambda: 7, "builtins.dict"):
        with pytest.raises(TypeError, match="algorithm must be a Baseline"):
            BASELINES.build(spec)
