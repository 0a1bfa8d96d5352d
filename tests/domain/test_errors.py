"""Errors: base classes among Python's exceptions, pickling, and remedies in messages."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from store import errors
from store.errors import (
    Busy,
    Closed,
    Conflict,
    Invalid,
    NotFound,
    RateLimited,
    ReadOnly,
    StoreError,
    TimedOut,
    TooLarge,
    Unavailable,
    Unsupported,
)
from tests.errors import EXAMPLES


def test_every_error_class_is_exported_and_tried_here() -> None:
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, StoreError)}
    assert classes == set(errors.__all__)
    assert classes == {type(error).__name__ for error in EXAMPLES}


def test_the_docstring_draws_the_tree_that_is() -> None:
    drawn = re.findall(r"(\w+)(?: \(([\w, ]+)\))?\s+(\d{3})?(?= |$)", errors.__doc__ or "", re.MULTILINE)
    statuses = {name: (builtins, status) for name, builtins, status in drawn if name in errors.__all__}
    assert set(statuses) == set(errors.__all__)
    for name, (builtins, status) in statuses.items():
        error = getattr(errors, name)
        assert error.status == int(status or error.__base__.status), name
        assert {base.__name__ for base in error.__mro__} >= {base for base in builtins.split(", ") if base}, name


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: str(type(error).__name__))
def test_an_error_survives_pickle_with_its_text_and_its_facts(error: StoreError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)
    assert back.retry_after_seconds == error.retry_after_seconds


@pytest.mark.parametrize(
    "error,text",
    [
        (NotFound.item(rollout_id="X"), "Item does not exist with primary key(s): rollout_id='X'"),
        (NotFound.rollout("X"), "Rollout X not found"),
        (NotFound.attempts("X"), "No attempts found for rollout X"),
        (NotFound.attempt("A", "X"), "Attempt A not found for rollout X"),
    ],
)
def test_not_found_speaks_as_agent_lightning_does(error: NotFound, text: str) -> None:
    assert str(error) == text
    assert isinstance(error, ValueError)
    assert isinstance(error, LookupError)


@pytest.mark.parametrize(
    "error,builtin",
    [
        (Conflict("a"), ValueError),
        (Invalid("a", "b"), ValueError),
        (Unavailable("a"), ConnectionError),
        (TimedOut("a", 1), TimeoutError),
        (ReadOnly("a"), PermissionError),
        (Unsupported("a", "b"), NotImplementedError),
        (Closed("a"), RuntimeError),
    ],
)
def test_a_newcomer_catches_it_as_a_builtin(error: StoreError, builtin: type[Exception]) -> None:
    assert isinstance(error, builtin)


def test_only_errors_of_the_moment_are_retryable_and_say_when() -> None:
    assert {type(error) for error in EXAMPLES if error.retryable} == {Unavailable, Busy, RateLimited, TimedOut}
    for error in EXAMPLES:
        assert (error.retry_after_seconds is not None) == error.retryable


def test_a_busy_store_says_when_to_come_back() -> None:
    assert str(Busy(5_000, 4_000, 0.25)) == (
        "5,000 calls already wait to be written, the most is 4,000; try again in 0.25 s"
    )


def test_too_large_field_is_distinguished_from_an_invalid_one() -> None:
    error = TooLarge("metadata", 2_000, 1_000)
    assert (error.status, error.field, error.size, error.limit) == (413, "metadata", 2_000, 1_000)
    assert isinstance(error, Invalid)
    assert str(error) == "metadata: 2,000 bytes is more than the limit of 1,000; shorten or split it"
