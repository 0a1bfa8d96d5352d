"""Results of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from store.errors import Corrupt, NotFound, StoreError, Unavailable
from store.models.enums import Frozen

CheckOutcome = Literal["ok", "warning", "problem", "skipped"]
ProblemKind = Literal["damage", "missing", "unavailable", "other"]
"""`damage`: the database contains data that no store wrote. `missing`: there is no such store.

`unavailable`: the database or the server does not answer.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a check."""

    outcome: CheckOutcome
    text: str
    remedy: str | None = None
    problem: ProblemKind | None = None


class CheckResult(Frozen):
    """The result of one check."""

    name: str
    outcome: CheckOutcome
    found: str
    """What was found, in one sentence. For a skipped check, the reason."""
    remedy: str | None = None
    """The remedy, as a command if possible. None if no remedy is needed."""
    problem: ProblemKind | None = None
    """The kind of the problem; None unless the outcome is `problem`."""


class Diagnosis(Frozen):
    """The results of all checks of a store and of this machine."""

    db: str
    """The URL of the store, without passwords."""
    checks: list[CheckResult]
    seconds: float

    @property
    def problems(self) -> list[CheckResult]:
        """The checks that found a problem."""
        return [check for check in self.checks if check.outcome == "problem"]


def ok(text: str) -> Verdict:
    """Return the result of a check that found nothing wrong."""
    return Verdict("ok", text)


def warning(text: str, remedy: str) -> Verdict:
    """Return the result of a check that found something that may become a problem."""
    return Verdict("warning", text, remedy)


def problem(text: str, remedy: str, kind: ProblemKind = "other") -> Verdict:
    """Return the result of a check that found a problem."""
    return Verdict("problem", text, remedy, kind)


def skipped(reason: str) -> Verdict:
    """Return the result of a check that was not made."""
    return Verdict("skipped", reason)


def of_error(error: StoreError, option: str) -> Verdict:
    """Return the problem that an error of the store describes.

    Args:
        error: the error.
        option: the option `--db` with the URL of the store, for the commands in remedies.
    """
    if isinstance(error, Corrupt):
        text = f"{error.what} is damaged: found {error.found}, expected {error.expected}"
        return problem(text, f"rollbook verify {option}, then restore a backup", "damage")
    if isinstance(error, NotFound) and error.kind == "store":
        text = str(error).partition(";")[0]
        return problem(text, f"rollbook migrate {option}", "missing")
    # Every error message ends with a semicolon and a remedy.
    text, _, cure = str(error).rpartition("; ") if "; " in str(error) else (str(error), "", f"rollbook doctor {option}")
    if isinstance(error, Unavailable):
        return problem(error.reason, f"remove the cause, then run: rollbook doctor {option}", "unavailable")
    return problem(text, cure, "missing" if isinstance(error, NotFound) else "other")
