"""Settings of a training from the environment: outranked by arguments, and refused if they are invalid."""

from __future__ import annotations

from typing import Any

import pytest

from store.errors import Invalid
from store.training.execution import ClientServerExecutionStrategy, SharedMemoryExecutionStrategy
from store.training.execution.environment import HOST, MANAGED, PORT, ROLE


def settings_of(**settings: Any) -> tuple[str, str, int, bool]:
    """Return what a strategy made of its settings and the environment."""
    strategy = ClientServerExecutionStrategy(**settings)
    return strategy.role, strategy.server_host, strategy.server_port, strategy.managed_store


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ROLE, HOST, PORT, MANAGED):
        monkeypatch.delenv(name, raising=False)


def test_without_anything_the_defaults_hold() -> None:
    assert settings_of() == ("both", "localhost", 0, True)
    assert settings_of(role="algorithm") == ("algorithm", "localhost", 4747, True)
    assert settings_of(role="runner") == ("runner", "localhost", 4747, True)


def test_the_environment_outranks_the_defaults_and_arguments_outrank_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ((ROLE, "Runner"), (HOST, "trainer"), (PORT, "81"), (MANAGED, "off")):
        monkeypatch.setenv(name, value)
    assert settings_of() == ("runner", "trainer", 81, False)
    arguments: dict[str, Any] = {"role": "algorithm", "server_host": "h", "server_port": 5, "managed_store": True}
    assert settings_of(**arguments) == ("algorithm", "h", 5, True)


@pytest.mark.parametrize("word, means", [("1", True), ("TRUE", True), ("yes", True), ("0", False), ("No", False)])
def test_yes_and_no_have_many_words(monkeypatch: pytest.MonkeyPatch, word: str, means: bool) -> None:
    monkeypatch.setenv(MANAGED, word)
    assert settings_of()[3] is means


@pytest.mark.parametrize("name, value", [(ROLE, "boss"), (PORT, "x"), (PORT, "65536"), (MANAGED, "perhaps")])
def test_a_variable_that_makes_no_sense_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        settings_of()


def test_arguments_that_make_no_sense_are_refused_by_name() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (ClientServerExecutionStrategy, {"role": "boss"}, "role"),
        (ClientServerExecutionStrategy, {"n_runners": 0}, "n_runners"),
        (ClientServerExecutionStrategy, {"main_process": "x"}, "main_process"),
        (ClientServerExecutionStrategy, {"main_process": "runner", "n_runners": 2}, "main_process"),
        (ClientServerExecutionStrategy, {"main_process": "runner", "role": "runner"}, "main_process"),
        (SharedMemoryExecutionStrategy, {"n_runners": 0}, "n_runners"),
        (SharedMemoryExecutionStrategy, {"main_thread": "x"}, "main_thread"),
        (SharedMemoryExecutionStrategy, {"main_thread": "runner", "n_runners": 2}, "main_thread"),
    ]
    for strategy, settings, name in cases:
        with pytest.raises(Invalid, match=name):
            strategy(**settings)
