"""Removals of payload that an administrator requests from a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from store.errors import Conflict
from store.models.enums import Frozen
from store.operations.choices import Redaction, Search
from store.operations.policy import RetentionPolicy

if TYPE_CHECKING:
    from store.operations.retention import RetentionReport


class RemoveByPolicy(Frozen):
    """Remove the payload of the rollouts that a policy selects, as `rollbook retention` does."""

    operation: Literal["remove"] = "remove"
    policy: RetentionPolicy


class MoveToArchive(Frozen):
    """Move the payload of the rollouts that a policy selects into a file, as `rollbook archive` does."""

    operation: Literal["archive"] = "archive"
    policy: RetentionPolicy
    file: Path


class RemoveEvents(Frozen):
    """Remove the payload of single events of a rollout, as `rollbook redact` does."""

    operation: Literal["redact"] = "redact"
    rollout_id: str
    redaction: Redaction
    rewrite: bool = False


class RemoveByText(Frozen):
    """Remove the payload of the events that contain a text, as `rollbook forget` does."""

    operation: Literal["forget"] = "forget"
    search: Search
    reason: str
    rewrite: bool = False


RequestedRemoval = Annotated[
    RemoveByPolicy | MoveToArchive | RemoveEvents | RemoveByText, Field(discriminator="operation")
]


async def run_requested(url: str, removal: RequestedRemoval, actor: str | None) -> str:
    """Run a removal, and return a description of the result. The description contains no payload.

    Args:
        url: the URL of the store.
        removal: the removal.
        actor: the name of the user who requested the removal; the log records the name.

    Raises:
        StoreError: the errors of the operation. Also `Conflict`, if the payload was removed but files may still contain
            it.
    """
    # Each operation is imported where it runs, because a server imports this module to check requests.
    match removal:
        case RemoveByPolicy():
            from store.operations.retention import remove_payload

            report = await remove_payload(url, removal.policy, apply=True, actor=actor)
            return f"payload of {_rollouts(report.rollouts)}, {_bytes(report)} ({report.policy})"
        case MoveToArchive():
            from store.operations.archive import archive_payload

            moved = await archive_payload(url, removal.file, removal.policy, apply=True, actor=actor)
            if not moved.is_applied:
                return f"no payload to move ({moved.policy})"
            left = (
                f"; the policy now also selects {_rollouts(moved.rollouts_left)} that the file does not contain"
                if moved.rollouts_left
                else ""
            )
            return (
                f"payload of {_rollouts(moved.rollouts)}, {_bytes(moved)}, moved to {removal.file.name}{left}"
                f" ({moved.policy})"
            )
        case RemoveEvents():
            from store.operations.redaction import redact

            redacted = await redact(url, removal.rollout_id, removal.redaction, rewrite=removal.rewrite, actor=actor)
            _check_clean(is_clean=redacted.is_clean)
            shared = (
                f"; long texts that other events also use stay: {redacted.kept_blobs:,}" if redacted.kept_blobs else ""
            )
            events, reason = _events(len(redacted.events)), removal.redaction.reason
            return f"payload of {events} of {removal.rollout_id}{shared} ({reason})"
        case RemoveByText():
            from store.operations.forgetting import forget

            forgotten = await forget(url, removal.search, reason=removal.reason, rewrite=removal.rewrite, actor=actor)
            _check_clean(is_clean=forgotten.is_clean)
            return f"payload of {_events(len(forgotten.matches))} of {_rollouts(forgotten.rollouts)} ({removal.reason})"


def _check_clean(*, is_clean: bool) -> None:
    if not is_clean:
        raise Conflict(
            "the payload was removed, but a transaction still reads an old state, so files may contain it",
            "request the same removal again later to clean the database",
        )


def _rollouts(count: int) -> str:
    return f"{count:,} rollout{'' if count == 1 else 's'}"


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"


def _bytes(report: RetentionReport) -> str:
    return f"{report.body_bytes + report.blob_bytes:,} bytes"
