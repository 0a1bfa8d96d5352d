"""Detectors: the functions that decide whether an attempt matches a scanner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from store.errors import Conflict, Invalid
from store.rescoring.attempt_record import AttemptRecord
from store.rescoring.reward_function import code_sha256, import_function, is_async
from store.scanning.attempt_texts import TextCondition, shortened
from store.scanning.model_judge import ModelJudge
from store.validation.scores import VersionKey

KEY_VARIABLE: Final = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class Detector:
    """The definition of a scanner, from which each process makes its function."""

    key: VersionKey
    kind: str
    definition: Mapping[str, Any]
    key_variable: str = KEY_VARIABLE
    """The environment variable with the key of the model server."""

    def load(self) -> Callable[[AttemptRecord], Any]:
        """Return a function that returns 1 as `value` for a match and 0 for none, and an `explanation`.

        Raises:
            Invalid: the definition is malformed, or its function cannot be imported.
            Conflict: the code of the function has changed.
        """
        try:
            return self._function()
        except KeyError as error:
            raise Invalid("definition", f"has no {error}, which a scanner of the kind {self.kind} needs") from None

    def _function(self) -> Callable[[AttemptRecord], Any]:
        fields = self.definition
        match self.kind:
            case "search":
                return TextCondition(fields["query"])
            case "regex":
                return TextCondition(fields.get("scope") or "", fields["pattern"])
            case "model":
                return ModelJudge(fields["prompt"], fields["model"], fields["endpoint"], self.key_variable)
            case "function":
                function = _import(fields["function"])
                if code_sha256(function) != fields["code_sha256"]:
                    raise Conflict(f"the code of {self.key} has changed", "choose a new version")
                return _detecting(function)
            case kind:
                raise Invalid("kind", f"{kind!r} is not search, regex, function or model")


def function_definition(place: str) -> dict[str, Any]:
    """Return the definition of a scanner for the function `module:function`.

    Raises:
        Invalid: the text has another form, or there is no such function.
    """
    return {"function": place, "code_sha256": code_sha256(_import(place))}


def _import(place: str) -> Callable[[AttemptRecord], Any]:
    module, _, function = place.partition(":")
    if not module or not function:
        raise Invalid("function", f"{place!r} is not of the form module:function, such as scanners:hacks_reward")
    return import_function(module, function, "function")


def _detecting(function: Callable[[AttemptRecord], Any]) -> Callable[[AttemptRecord], Any]:
    async def detect_async(record: AttemptRecord) -> dict[str, Any]:
        return _fields(await function(record))

    def detect(record: AttemptRecord) -> dict[str, Any]:
        return _fields(function(record))

    return detect_async if is_async(function) else detect


def _fields(returned: Any) -> dict[str, Any]:
    """Return the value that a function of a user returned as the fields of a score."""
    is_match: Any = returned
    explanation: Any = None
    if isinstance(returned, tuple):
        pair = cast("tuple[Any, ...]", returned)
        is_match, explanation = pair if len(pair) == 2 else (None, None)
    if not isinstance(is_match, bool) or not isinstance(explanation, str | None):
        name = type(cast("object", returned)).__name__
        raise TypeError(f"the function returned {name}; it must return a bool, or a bool and an explanation")
    return {"value": float(is_match), "explanation": shortened(explanation)}
