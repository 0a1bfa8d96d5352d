"""Checks of scanners and their results. A store on a database and a store over HTTP make the same checks."""

from __future__ import annotations

from typing import Any, Final

from store.errors import Invalid, TooLarge
from store.models.scanners import NewScan, NewScanner
from store.validation import arguments
from store.validation.annotations import check_label
from store.validation.json_limits import check_text, dumps
from store.validation.scores import MAX_MESSAGE, VersionKey, version_key

MAX_DEFINITION_BYTES: Final = 64 * 1024
MAX_SCAN_EXPLANATION_BYTES: Final = 4 * 1024
MAX_UNSCANNED: Final = 10_000


def scanner_key(name: Any, version: Any) -> VersionKey:
    """Return the name and the version of a scanner.

    Raises:
        Invalid, TooLarge: one of them is malformed.
    """
    for field, word in (("name", name), ("version", version)):
        if "@" in arguments.text(word, field):
            raise Invalid(field, f"{word!r} contains @, which separates name and version")
        check_label(word, field)
    return version_key(f"{name}@{version}", "scanner")


def check_scanner(scanner: Any) -> NewScanner:
    """Return a scanner of a call.

    Raises:
        Invalid, TooLarge: see `StoreScanners.add`.
    """
    if not isinstance(scanner, NewScanner):
        raise Invalid("scanner", f"is {type(scanner).__name__}, not a NewScanner")
    scanner_key(scanner.name, scanner.version)
    size = len(dumps(scanner.definition, "scanner.definition"))
    if size > MAX_DEFINITION_BYTES:
        raise TooLarge("scanner.definition", size, MAX_DEFINITION_BYTES)
    for field in ("match_label", "clear_label"):
        label = getattr(scanner, field)
        if label is not None:
            check_label(label, f"scanner.{field}")
    return scanner


def check_scans(name: Any, version: Any, scans: Any) -> list[NewScan]:
    """Return the results of a call as a list.

    Raises:
        Invalid, TooLarge: see `StoreScanners.record`.
    """
    scanner_key(name, version)
    items: list[Any] = arguments.several(scans, "scans")
    for index, scan in enumerate(items):
        path = f"scans[{index}]"
        if not isinstance(scan, NewScan):
            raise Invalid(path, f"is {type(scan).__name__}, not a NewScan")
        for field in ("rollout_id", "attempt_id"):
            check_text(getattr(scan, field), f"{path}.{field}")
        if (scan.is_match is None) == (scan.error is None):
            raise Invalid(f"{path}.is_match", "pass either is_match or error, not both or neither")
        if scan.error is not None:
            check_text(scan.error.type, f"{path}.error.type", MAX_MESSAGE)
            check_text(scan.error.message, f"{path}.error.message", 4 * MAX_MESSAGE)
        if scan.explanation is not None:
            check_text(scan.explanation, f"{path}.explanation", MAX_SCAN_EXPLANATION_BYTES)
    return items


def check_limit(limit: Any) -> int:
    """Return the limit of a page of attempts without a result.

    Raises:
        Invalid: the limit is not an integer from 1 to 10,000.
    """
    if arguments.whole(limit, "limit", "a count", 1) > MAX_UNSCANNED:
        raise Invalid("limit", f"is {limit:,}, and one page has at most {MAX_UNSCANNED:,} attempts")
    return limit
