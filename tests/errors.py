"""An instance of every error class, and of every way to create it."""

from __future__ import annotations

from store import errors
from store.errors import NotFound, StoreError

EXAMPLES: list[StoreError] = [
    NotFound.rollout("ro-é"),
    NotFound.item(rollout_id="ro-1"),
    NotFound.attempt("at-1", "ro-1"),
    NotFound.attempts("ro-1"),
    errors.Conflict("the plan key 'k' belongs to rollout ro-1", "use another key"),
    errors.AlreadyExists("rollout", "ro-1"),
    errors.AttemptActive("ro-1", 2),
    errors.HeadMoved("ro-1", 1, None),
    errors.GraphChanged(["cp-1"]),
    errors.CheckpointMissing("trader_checkpoint", ["RIG", "TSDD"], "risk"),
    errors.SideEffectsUnconfirmed(["portfolio"]),
    errors.SpanConflict([["ro-1", "at-1", "s1"]], [0], [[1, 2]]),
    errors.Invalid("limit", "-2 is less than -1"),
    errors.TooLarge("span", 9_000_000, 8_388_608),
    errors.PastUnavailable(1_000_001, 100_000),
    errors.Unavailable("the database is not reached", 0.01),
    errors.Busy(10_000, 10_000, 0.01),
    errors.RateLimited("run_7", 500, 0.01),
    errors.TimedOut("enqueue_rollout", 30.0, 0.01),
    errors.QuotaExceeded("run_7", "events", 5_000_000, 2, 5_000_000),
    errors.Incompatible("the schema is older than this program", "run `rollbook migrate`"),
    errors.Corrupt("chain of commit 7", "ab", "cd"),
    errors.Unauthorized("no key was given"),
    errors.Forbidden("the key abc is of another partition"),
    errors.ReadOnly("add_span"),
    errors.Unsupported("tail", "SomeStore"),
    errors.WrongProcess(1, 2),
    errors.Closed("statistics"),
    StoreError("in general"),
]
