"""Reward functions: their names on the command line, their code, and their results."""

from __future__ import annotations

import hashlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, cast

from store.errors import Invalid
from store.models.scores import NewScore, ScoreError
from store.rescoring.attempt_record import AttemptRecord
from store.validation.scores import MAX_MESSAGE, VersionKey, version_key

_KEYS: Final = frozenset({"value", "dimensions", "explanation"})
_FORM: Final = "module:function@version, such as rewards:helpful@v2"


@dataclass(frozen=True, slots=True)
class RewardReference:
    """A version of a reward, and where its function is defined."""

    module: str
    function: str
    key: VersionKey

    @classmethod
    def of(cls, text: str, name: str | None = None) -> RewardReference:
        """Return the reference in a text such as `rewards:helpful@v2`.

        Args:
            text: the module, the function and the version.
            name: the name of the reward; None for the name of the function.

        Raises:
            Invalid, TooLarge: the text has another form, or the name or the version cannot be stored.
        """
        place, at, version = text.rpartition("@")
        module, colon, function = place.partition(":")
        if not (at and colon and module and function and version):
            raise Invalid("reward", f"{text!r} is not of the form {_FORM}")
        return cls(module, function, version_key(f"{name or function.rpartition('.')[2]}@{version}", "reward"))

    def load(self) -> Callable[[AttemptRecord], Any]:
        """Import and return the function. Its module may also be in the current directory.

        Raises:
            Invalid: the module cannot be imported, or has no such function.
        """
        return import_function(self.module, self.function, "reward")


def import_function(module: str, function: str, field: str) -> Callable[[AttemptRecord], Any]:
    """Import and return a function. Its module may also be in the current directory.

    Raises:
        Invalid: the module cannot be imported, or has no such function. The error names `field`.
    """
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        target: Any = import_module(module)
    except Exception as error:
        raise Invalid(field, f"{module!r} cannot be imported: {type(error).__name__}: {error}") from error
    for part in function.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        fault = "is missing" if target is None else "is no function"
        raise Invalid(field, f"{module}:{function} {fault}")
    return target


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calls of a function are awaited, so that several may run at once."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def code_sha256(function: Callable[..., Any]) -> str | None:
    """Return the SHA-256, in hex, of a function's source and of all functions and classes of its module that it uses.

    None if a source cannot be read, for example because the function is compiled.
    """
    sources: dict[str, str] = {}
    pending: list[Any] = [inspect.unwrap(function)]
    module = getattr(pending[0], "__module__", None)
    while pending:
        part = pending.pop()
        subject = part if isinstance(part, FunctionType | type) else type(part)
        if subject.__qualname__ in sources:
            continue
        try:
            sources[subject.__qualname__] = inspect.getsource(subject)
        except (OSError, TypeError):
            return None
        pending += [other for other in _uses(subject) if getattr(other, "__module__", None) == module]
    return hashlib.sha256("\n".join(sources[name] for name in sorted(sources)).encode()).hexdigest()


def _uses(part: FunctionType | type) -> list[FunctionType | type]:
    functions = [part] if isinstance(part, FunctionType) else [f for f in vars(part).values() if inspect.isfunction(f)]
    names = {(name, id(function)): function for function in functions for name in _names(function.__code__)}
    values = [function.__globals__.get(name) for (name, _), function in names.items()]
    return [value for value in values if isinstance(value, FunctionType | type)]


def _names(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*(_names(constant) for constant in inner))


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The result of a reward function for one attempt: a value, or the error that it raised."""

    value: float | None = None
    dimensions: tuple[tuple[str, float], ...] = ()
    explanation: str | None = None
    error: tuple[str, str] | None = None
    """The class and the message of the error."""

    @classmethod
    def of(cls, returned: Any) -> ScoreResult:
        """Convert the value that a reward function returned to a result.

        Raises:
            TypeError: the value is neither a number nor a mapping of the right form with a number as `value`.
            ValueError: a number is NaN or infinite.
        """
        if not isinstance(returned, Mapping):
            return cls(_number(returned, "the function returned"))
        fields = cast("Mapping[Any, Any]", returned)
        if "value" not in fields or not fields.keys() <= _KEYS:
            names = ", ".join(map(repr, fields)) or "none"
            raise TypeError(f"a mapping has `value`, and perhaps `dimensions` and `explanation`; the keys are {names}")
        dimensions: Any = fields.get("dimensions") or {}
        explanation = fields.get("explanation")
        if not isinstance(dimensions, Mapping):
            raise TypeError(f"`dimensions` is {type(dimensions).__name__}, not a mapping of names to numbers")
        if not isinstance(explanation, str | None):
            raise TypeError(f"`explanation` is {type(explanation).__name__}, not text")
        numbers = [
            (str(name), _number(number, f"the dimension {name!r} is"))
            for name, number in cast("Mapping[Any, Any]", dimensions).items()
        ]
        return cls(_number(fields["value"], "`value` is"), tuple(numbers), explanation)

    @classmethod
    def failed(cls, error: BaseException) -> ScoreResult:
        """Return the result for an error."""
        try:
            message = str(error)
        except Exception:  # noqa: BLE001 - the class of a user may raise any error
            message = "its message cannot be read"
        return cls.failure(type(error).__name__, message)

    @classmethod
    def failure(cls, kind: str, message: str) -> ScoreResult:
        """Return the result for an error with this class and message."""
        # A message may contain text that no database stores.
        storable = message.encode("utf-8", "replace").decode().replace("\x00", "�")
        return cls(error=(kind, storable if len(storable) <= MAX_MESSAGE else storable[: MAX_MESSAGE - 1] + "…"))

    def score(self, rollout_id: str, attempt_id: str, key: VersionKey, code: str | None) -> NewScore:
        """Return the result as a score of an attempt."""
        return NewScore(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            name=key.name,
            version=key.version,
            value=self.value,
            dimensions=dict(self.dimensions),
            error=None if self.error is None else ScoreError(type=self.error[0], message=self.error[1]),
            code_sha256=code,
            explanation=self.explanation,
        )


def _number(value: Any, what: str) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"{what} {type(value).__name__}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{what} {number}, which is not finite")
    return number
