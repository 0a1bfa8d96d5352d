"""A simple model of the store: dicts, full scans, and one call after the other.

It implements the contract without regard to the code of the store. The model takes random values, such as new ids, from
the results of the store.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from store.testing import ManualClock

Json = dict[str, Any]

TERMINAL: Final = ("succeeded", "failed", "cancelled")
ONE_MILLISECOND: Final = 1_000
"""In µs. The timestamps of commands at the same time of the clock differ by less."""
WAITING: Final = ("queuing", "requeuing")
WORKER_STATUS: Final = {
    "preparing": "busy",
    "running": "busy",
    "succeeded": "idle",
    "failed": "idle",
    "timeout": "unknown",
    "unresponsive": "unknown",
}
PLAIN_CONFIG: Final[Json] = {
    "max_attempts": 1,
    "retry_condition": [],
    "timeout_seconds": None,
    "unresponsive_seconds": None,
}


class Refused(Exception):
    """The contract refuses the call: the name of the error, and its text where the contract fixes it."""

    def __init__(self, kind: str, text: str | None = None) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text


class Model:
    """What a store should hold. Rows are dicts named as the columns of the tables; keys with `_` are not columns."""

    def __init__(self, clock: ManualClock, owner: Json) -> None:
        self._clock = clock
        self._owner = text_of(owner)
        self.last = 0
        """The stamp of the last fact."""
        self._now = 0
        self._place = 0
        self.rollouts: dict[str, Json] = {}
        self.attempts: dict[str, list[Json]] = {}
        """By rollout, oldest first; an attempt whose claim was released is gone."""
        self.spans: dict[tuple[str, str, str], Json] = {}
        self.rewards: list[Json] = []
        self.run_events: list[Json] = []
        self.labels: dict[str, set[str]] = {}
        """By rollout."""
        self.scores: list[Json] = []
        """The recorded scores in the order of the log."""
        self.notes: list[str] = []
        """For each note, whose it is."""
        self.resources: dict[str, Json] = {}
        self.latest_resources: str | None = None
        self.workers: dict[str, Json] = {}
        self.counters: dict[str, int] = {}
        self.reserved: dict[str, int] = {}
        """By rollout, the last number that its stream reserves."""
        self.queue: list[tuple[int, str]] = []
        self.total_attempts = 0
        self.current: str | None = None
        """The rollout whose attempt started last."""
        self.judged: list[tuple[str, str | None]] = []
        """Rollouts whose overdue attempt the watchdog ended, oldest first, each with the attempt's new status.

        The status is None if it did not change.
        """
        self.is_steady = True
        """Whether the clock never went back and no store was reopened. Only then must no overdue attempt be missed."""
        self.turn = 0
        """The store that is called."""
        self.observed: tuple[list[int], list[int]] = ([], [])
        """For each of the two stores, the elapsed times at which it certainly read the end of the log."""

    def _begin(self) -> None:
        self._now = max(self._clock(), self.last + 1)

    def _fact(self) -> None:
        self.last = self._now

    def enqueue(self, requests: Sequence[Json], fresh: Iterable[str]) -> list[Json]:
        ids = iter(fresh)
        self._check_keys(requests)
        created: list[str] = []
        for request in requests:
            drawn = next(ids)
            held_by = self._by_key(request)
            if held_by is None:
                self._begin()
                self._create(drawn, request, "queuing")
                self._join(drawn)
            created.append(held_by or drawn)
        return [self.rollout(rollout_id) for rollout_id in created]

    def _check_keys(self, requests: Sequence[Json]) -> None:
        inputs: dict[str, str] = {}
        for request in requests:
            key = request["metadata"].get("rollbook.key")
            if key is None:
                continue
            held_by = self._by_key(request)
            digest = inputs.get(key) if held_by is None else self.rollouts[held_by]["input_sha256"]
            inputs[key] = digest or digest_of(request["input"])
            if inputs[key] != digest_of(request["input"]):
                raise Refused("Conflict")

    def _by_key(self, request: Json) -> str | None:
        key = request["metadata"].get("rollbook.key")
        held_by = [
            rollout_id for rollout_id, row in self.rollouts.items() if key is not None and row["plan_key"] == key
        ]
        return held_by[0] if held_by else None

    def _create(self, rollout_id: str, request: Json, status: str) -> None:
        assert rollout_id not in self.rollouts
        resources_id = request.get("resources_id") or self.latest_resources
        metadata = request["metadata"]
        self._fact()
        self.attempts[rollout_id] = []
        self.rollouts[rollout_id] = {
            "rollout_id": rollout_id,
            "status": status,
            "mode": request.get("mode"),
            "resources_id": resources_id,
            "resources_version": self._version(resources_id),
            "config": text_of(request.get("config") or PLAIN_CONFIG),
            "start_at": self._now,
            "end_at": None,
            "group_id": metadata.get("rollbook.group"),
            "step": metadata.get("rollbook.step"),
            "plan_key": metadata.get("rollbook.key"),
            "input_sha256": digest_of(request["input"]),
            "attempt_count": 0,
            "rerun_seq": 0,
            "last_reward": None,
            "spans": 0,
            "tokens_in": 0,
            "tokens_out": 0,
            "error": None,
            "head": None,
            "_input": request["input"],
            "_metadata": metadata,
        }

    def start_rollout(self, request: Json, worker_id: str | None, rollout_id: str, attempt_id: str) -> Json:
        if self._by_key(request) is not None:
            raise Refused("Conflict")
        self._begin()
        self._create(rollout_id, request, "preparing")
        attempt = self._start(rollout_id, attempt_id, worker_id, "rollout")
        if worker_id is not None:
            self._sync(attempt)
        return self.rollout(rollout_id, attempt)

    def update_rollout(self, rollout_id: str, fields: Json, status: str | None) -> Json:
        self._begin()
        row = self.rollouts.get(rollout_id)
        if row is None:
            raise Refused("NotFound", f"Item does not exist with primary key(s): rollout_id={rollout_id!r}")
        for name, value in fields.items():
            self._amend(row, name, value)
        if status is not None:
            self._move(row, status)
        return self.rollout(rollout_id)

    def _amend(self, row: Json, name: str, value: Any) -> None:
        column, value = (name, text_of(value)) if name == "config" else (name, value)
        if name in {"input", "metadata"}:
            column = f"_{name}"
        elif row[column] == value:
            return
        self._fact()
        row[column] = value
        if name == "resources_id":
            row["resources_version"] = self._version(value)

    def _move(self, row: Json, to: str) -> None:
        if row["status"] == to and to not in TERMINAL:
            return
        self._fact()
        row["status"] = to
        if to in TERMINAL:
            row["end_at"] = self._now
        if to not in WAITING:
            self.queue = [place for place in self.queue if place[1] != row["rollout_id"]]
        elif not self.is_queued(row["rollout_id"]):
            self._join(row["rollout_id"])

    def _join(self, rollout_id: str) -> None:
        self._place += 1
        self.queue.append((self._place, rollout_id))

    def is_queued(self, rollout_id: str) -> bool:
        """Whether a rollout has a place in the queue."""
        return any(queued_id == rollout_id for _, queued_id in self.queue)

    def dequeue(self, limit: int, worker_id: str | None, fresh: Iterable[str]) -> list[Json]:
        ids = iter(fresh)
        claimed: list[Json] = []
        attempt: Json | None = None
        self._begin()
        if limit <= 0:
            return []
        for place, rollout_id in self.queue[:limit]:
            self._begin()
            row = self.rollouts[rollout_id]
            attempt = self._start(rollout_id, next(ids), worker_id, "dequeue")
            attempt["_claim"] = (row["status"], place)
            self._move(row, "preparing")
            claimed.append(self.rollout(rollout_id, attempt))
        if worker_id is not None:
            if attempt is not None:
                self._sync(attempt)
            else:
                self._idle(worker_id)
            self.workers[worker_id]["_dequeue"] = self._now
        return claimed

    def release(self, rollout_id: str, attempt_id: str) -> bool:
        """Undo a claim nobody waits for, unless something has happened to its attempt."""
        self._begin()
        row = self.rollouts[rollout_id]
        attempt = self._attempt(rollout_id, attempt_id)
        if attempt is None or attempt is not self.latest(rollout_id) or row["status"] != "preparing":
            return False
        if attempt["_touched"]:
            return False
        self._fact()
        self.attempts[rollout_id].remove(attempt)
        self.total_attempts -= 1
        row["attempt_count"] -= 1
        if row["head"] == attempt["sequence_id"]:
            row["head"] = attempt["head_before"]
        row["status"], place = attempt["_claim"]
        self.queue = sorted([*self.queue, (place, rollout_id)])
        worker = self.workers.get(attempt["worker_id"] or "")
        if worker is not None and worker["current_attempt_id"] == attempt_id:
            self._become(worker["worker_id"], "idle", None, None)
        return True

    def start_attempt(self, rollout_id: str, worker_id: str | None, attempt_id: str) -> Json:
        self._begin()
        row = self.rollouts.get(rollout_id)
        if row is None:
            raise Refused("NotFound", f"Rollout {rollout_id} not found")
        attempt = self._start(rollout_id, attempt_id, worker_id, "start")
        self._move(row, "preparing")
        if worker_id is not None:
            self._sync(attempt)
        return self.rollout(rollout_id, attempt)

    def _start(self, rollout_id: str, attempt_id: str, worker_id: str | None, via: str) -> Json:
        assert self._attempt(rollout_id, attempt_id) is None
        row = self.rollouts[rollout_id]
        self._fact()
        row["attempt_count"] += 1
        self.total_attempts += 1
        attempt: Json = {
            "rollout_id": rollout_id,
            "attempt_id": attempt_id,
            "sequence_id": row["attempt_count"],
            "status": "preparing",
            "worker_id": worker_id,
            "start_at": self._now,
            "end_at": None,
            "last_heartbeat_time": None,
            "heartbeat_stamped_at": None,
            "via": via,
            "rerun_seq": 0,
            "resources_version": self._version(row["resources_id"]),
            "owner": self._owner,
            "error": None,
            "tries": row["attempt_count"],
            "head_before": row["head"],
            "_metadata": None,
            "_beat": None,
            "_started": self._clock.elapsed(),
            "_signed": self._clock.elapsed(),
            "_sign_age": 0,
            "_touched": False,
            "_claim": None,
        }
        row["head"] = attempt["sequence_id"]
        self.attempts[rollout_id].append(attempt)
        self.current = rollout_id
        return attempt

    def update_attempt(self, rollout_id: str, attempt_id: str, fields: Json, status: str | None) -> Json:
        self._begin()
        row = self.rollouts.get(rollout_id)
        if row is None:
            raise Refused("NotFound", f"Rollout {rollout_id} not found")
        if not self.attempts[rollout_id]:
            raise Refused("NotFound", f"No attempts found for rollout {rollout_id}")
        attempt = self.latest(rollout_id) if attempt_id == "latest" else self._attempt(rollout_id, attempt_id)
        if attempt is None:
            raise Refused("NotFound", f"Attempt {attempt_id} not found for rollout {rollout_id}")
        if fields.keys() == {"last_heartbeat_time"} and status is None:
            attempt["_beat"] = (fields["last_heartbeat_time"], self._now)
            attempt["_touched"] = True
            self._hear(attempt, fields["last_heartbeat_time"])
            return self._attempt_answer(attempt)
        for name, value in fields.items():
            self._amend_attempt(attempt, name, value)
        if status is not None:
            self._report(attempt, status)
            self._propagate(row, attempt)
        if fields.get("worker_id") or (status is not None and attempt["worker_id"]):
            self._sync(attempt)
        return self._attempt_answer(attempt)

    def _amend_attempt(self, attempt: Json, name: str, value: Any) -> None:
        if name == "worker_id" and attempt["worker_id"] == value:
            return
        self._fact()
        attempt["_touched"] = True
        attempt["_metadata" if name == "metadata" else name] = value
        if name == "last_heartbeat_time":
            attempt["heartbeat_stamped_at"] = self._now
            self._hear(attempt, value)

    def _hear(self, attempt: Json, sign: float) -> None:
        attempt["_signed"] = self._clock.elapsed()
        attempt["_sign_age"] = self._now - round(sign * 1e6)

    def _report(self, attempt: Json, status: str) -> None:
        ends = status in {"succeeded", "failed"}
        if attempt["status"] == status and not ends:
            return
        self._fact()
        attempt["_touched"] = True
        attempt["status"] = status
        if ends:
            attempt["end_at"] = self._now

    def _propagate(self, row: Json, attempt: Json) -> None:
        if attempt is not self.latest(row["rollout_id"]):
            return
        to, config = attempt["status"], json.loads(row["config"])
        if to in {"failed", "timeout", "unresponsive"}:
            again = to in config["retry_condition"] and attempt["sequence_id"] < config["max_attempts"]
            to = "requeuing" if again else "failed"
        if to != row["status"]:
            self._move(row, to)

    def must_be_overdue(self, row: Json) -> bool:
        """Whether the store that is called must end the latest attempt of a rollout.

        A store knows that an event is older than its first read of the log that follows the event.
        """
        attempt = self.latest(row["rollout_id"])
        if not self.is_steady or row["status"] not in {"preparing", "running"} or attempt is None:
            return False
        config, elapsed = json.loads(row["config"]), self._clock.elapsed()

        def is_exceeded(limit: float | None, since: int) -> bool:
            seen = next((time for time in self.observed[self.turn] if time > since), elapsed)
            return limit is not None and elapsed - seen > round(limit * 1e6) + ONE_MILLISECOND

        # A store learns of another store's heartbeat without an event only when it checks the attempt.
        is_heard = attempt["_beat"] is None and attempt["_sign_age"] >= 0
        return is_exceeded(config["timeout_seconds"], attempt["_started"]) or (
            is_heard and is_exceeded(config["unresponsive_seconds"], attempt["_signed"])
        )

    def may_be_overdue(self, row: Json, status: str) -> bool:
        """Whether enough time has passed for a rollout's latest attempt to end as `status`."""
        attempt = self.latest(row["rollout_id"])
        if row["status"] not in {"preparing", "running"} or attempt is None:
            return False
        config = json.loads(row["config"])
        elapsed = self._clock.elapsed()
        if status == "timeout":
            limit, passed = config["timeout_seconds"], elapsed - attempt["_started"]
        else:
            limit, passed = config["unresponsive_seconds"], elapsed - attempt["_signed"] + max(0, attempt["_sign_age"])
        return limit is not None and passed >= round(limit * 1e6)

    def any_overdue(self) -> bool:
        """Whether the watchdog must find something."""
        return any(self.must_be_overdue(row) for row in self.rollouts.values())

    def sweep(self, ended: int) -> int:
        """End the attempts that the watchdog of the databases ended: the first `ended` of `judged`.

        No attempt may end before enough time has passed, and none may be missed that must be overdue.
        """
        self._begin()
        judged, self.judged = self.judged[:ended], self.judged[ended:]
        given_up = 0
        for row in self.rollouts.values():
            attempt = self.latest(row["rollout_id"])
            if attempt is None:
                continue
            if given_up == len(judged) or judged[given_up][0] != row["rollout_id"]:
                assert not self.must_be_overdue(row), f"{attempt} was not ended at {self._now}"
                continue
            status = judged[given_up][1] or attempt["status"]
            assert self.may_be_overdue(row, status), f"{attempt} ended as {status} too early, at {self._now}"
            self._begin()
            self._report(attempt, status)
            self._propagate(row, attempt)
            if attempt["worker_id"]:
                self._sync(attempt)
            given_up += 1
        assert given_up == len(judged), judged
        return given_up

    @staticmethod
    def sign_of_life(attempt: Json) -> float | None:
        """What was written last, by stamp: the fact, or the bare heartbeat."""
        beat = attempt["_beat"]
        if beat is not None and beat[1] > (attempt["heartbeat_stamped_at"] or 0):
            return beat[0]
        return attempt["last_heartbeat_time"]

    def add_spans(self, spans: Sequence[Json], *, number: bool = False) -> list[Json]:
        """Store spans group by group and return those that were new; with `number`, each gets the next number.

        A span with the key of a stored span and other content is a conflict. The other spans are stored.
        """
        self._begin()
        groups: dict[tuple[str, str], list[Json]] = {}
        for span in spans:
            groups.setdefault((span["rollout_id"], span["attempt_id"]), []).append(span)
        new: list[Json] = []
        conflicts = 0
        for (rollout_id, attempt_id), group in groups.items():
            if number:
                span_ids = {key[2] for key in self.spans if key[:2] == (rollout_id, attempt_id)}
                for span in group:
                    if span["span_id"] not in span_ids:
                        span_ids.add(span["span_id"])
                        span["sequence_id"] = self._number(rollout_id)
            highest = max(span["sequence_id"] for span in group)
            self.counters[rollout_id] = max(highest, self.counters.get(rollout_id, 0))
            attempt = self._existing_attempt(rollout_id, attempt_id)
            for span in group:
                key: tuple[str, str, str] = (rollout_id, attempt_id, span["span_id"])
                existing = self.spans.get(key, span)
                conflicts += {**existing, "sequence_id": None} != {**span, "sequence_id": None}
                if existing is span:
                    self._record(key, span, attempt)
                    new.append(span)
        if conflicts:
            raise Refused("SpanConflict")
        return new

    def _existing_attempt(self, rollout_id: str, attempt_id: str) -> Json:
        if rollout_id not in self.rollouts:
            raise Refused("NotFound", f"Rollout {rollout_id} not found")
        attempt = self._attempt(rollout_id, attempt_id)
        if attempt is None:
            raise Refused("NotFound", f"Attempt {attempt_id} not found for rollout {rollout_id}")
        return attempt

    def append_run_events(self, rollout_id: str, attempt_id: str, nodes: Sequence[str]) -> None:
        """Record one result of each node."""
        self._begin()
        attempt = self._existing_attempt(rollout_id, attempt_id)
        for node in nodes:
            self._begin()
            self._fact()
            self._sign(attempt)
            told = {"rollout_id": rollout_id, "attempt": attempt["sequence_id"], "kind": "result", "node_id": node}
            self.run_events.append(told)
        self._come_to_life(attempt)

    def move_head(self, rollout_id: str, attempt_id: str) -> Json:
        """Let another attempt's view be the rollout's."""
        self._begin()
        row = self.rollouts.get(rollout_id)
        if row is None:
            raise Refused("NotFound", f"Rollout {rollout_id} not found")
        attempt = self._attempt(rollout_id, attempt_id)
        if attempt is None:
            raise Refused("NotFound", f"Attempt {attempt_id} not found for rollout {rollout_id}")
        if row["head"] != attempt["sequence_id"]:
            self._fact()
            row["head"] = attempt["sequence_id"]
        return self.rollout(rollout_id)

    def annotate(self, rollout_id: str, added: Sequence[str], removed: Sequence[str], note: str | None) -> list[str]:
        """Say something of a rollout, which has one fact if it changes a label or makes a note."""
        self._begin()
        if rollout_id not in self.rollouts:
            raise Refused("NotFound", f"Rollout {rollout_id} not found")
        before = self.labels.setdefault(rollout_id, set())
        after = (before - set(removed)) | set(added)
        if after != before or note is not None:
            self._fact()
        if note is not None:
            self.notes.append(rollout_id)
        self.labels[rollout_id] = after
        return sorted(after)

    def record_score(self, rollout_id: str, attempt_id: str, value: float) -> bool:
        """Record the value of the only version of the only reward, and return whether it is new."""
        self._begin()
        if rollout_id not in self.rollouts or self._attempt(rollout_id, attempt_id) is None:
            raise Refused("NotFound")
        key = {"rollout_id": rollout_id, "attempt_id": attempt_id}
        before = next((row["value"] for row in self.scores if row.items() >= key.items()), None)
        if before not in {None, value}:
            raise Refused("Conflict")
        if before is None:
            self._fact()
            self.scores.append({**key, "name": "exact", "version": "v1", "value": value})
        return before is None

    def _record(self, key: tuple[str, str, str], span: Json, attempt: Json) -> None:
        # The first fact of a call has the call's stamp; each later span comes after what was recorded before it.
        self._begin()
        row = self.rollouts[key[0]]
        self._fact()
        self.spans[key] = span
        self._sign(attempt)
        row["spans"] += 1
        row["tokens_in"] += span["attributes"].get("gen_ai.usage.input_tokens", 0)
        reward = span["attributes"].get("agentlightning.reward.0.value")
        if reward is not None:
            row["last_reward"] = reward
            self.rewards.append(
                {"rollout_id": key[0], "ordinal": 0, "attempt_id": key[1], "name": "primary", "value": reward}
            )
        self._come_to_life(attempt)

    def _sign(self, attempt: Json) -> None:
        attempt["last_heartbeat_time"] = self._now / 1e6
        attempt["heartbeat_stamped_at"] = self._now
        self._hear(attempt, self._now / 1e6)
        attempt["_touched"] = True

    def _come_to_life(self, attempt: Json) -> None:
        row = self.rollouts[attempt["rollout_id"]]
        if attempt["status"] in {"preparing", "unresponsive"}:
            attempt["status"] = "running"
        is_latest = attempt is self.latest(attempt["rollout_id"])
        if is_latest and attempt["status"] == "running" and row["status"] in {"preparing", "requeuing"}:
            self._move(row, "running")

    def _number(self, rollout_id: str) -> int:
        self.counters[rollout_id] = self.counters.get(rollout_id, 0) + 1
        return self.counters[rollout_id]

    def number_spans(self, rollout_ids: Sequence[str]) -> list[int]:
        for rollout_id, drawn in Counter(rollout_ids).items():
            last = self.counters.get(rollout_id, 0) + drawn
            if rollout_id in self.rollouts and last > self.reserved.get(rollout_id, 0):
                # Each block has one fact, later than the fact before it.
                self._begin()
                self._fact()
                self.reserved[rollout_id] = max(last, last - drawn + 32)
        return [self._number(rollout_id) for rollout_id in rollout_ids]

    def span_counters(self) -> dict[str, tuple[int, int]]:
        """Return the last number of each rollout and the last reserved one."""
        return {rollout_id: (number, self.reserved.get(rollout_id, 0)) for rollout_id, number in self.counters.items()}

    def publish(self, resources_id: str, resources: Json) -> Json:
        self._begin()
        self._fact()
        previous = self.resources.get(resources_id)
        self.resources[resources_id] = {
            "resources_id": resources_id,
            "version": previous["version"] + 1 if previous else 1,
            "create_at": previous["create_at"] if previous else self._now,
            "update_at": self._now,
            "_resources": resources,
        }
        self.latest_resources = resources_id
        return self.resources_answer(resources_id)

    def _version(self, resources_id: str | None) -> int | None:
        resources = self.resources.get(resources_id or "")
        return None if resources is None else resources["version"]

    def update_worker(self, worker_id: str, stats: Json | None) -> Json:
        self._begin()
        self._seen(worker_id)
        self.workers[worker_id]["_heartbeat"] = self._now
        if stats is not None:
            self.workers[worker_id]["_stats"] = stats
        return self.worker(worker_id)

    def _seen(self, worker_id: str) -> None:
        if worker_id in self.workers:
            return
        self._fact()
        self.workers[worker_id] = {
            "worker_id": worker_id,
            "status": "unknown",
            "current_rollout_id": None,
            "current_attempt_id": None,
            "last_busy_at": None,
            "last_idle_at": None,
            "_stats": None,
            "_heartbeat": None,
            "_dequeue": None,
            "_busy": None,
            "_idle": None,
        }

    def _sync(self, attempt: Json) -> None:
        if not attempt["worker_id"]:
            return
        status = WORKER_STATUS[attempt["status"]]
        if status == "busy":
            self._become(attempt["worker_id"], status, attempt["rollout_id"], attempt["attempt_id"])
        else:
            self._become(attempt["worker_id"], status, None, None)

    def _idle(self, worker_id: str) -> None:
        self._seen(worker_id)
        worker = self.workers[worker_id]
        if worker["status"] != "idle":
            self._become(worker_id, "idle", worker["current_rollout_id"], worker["current_attempt_id"])

    def _become(self, worker_id: str, status: str, rollout_id: str | None, attempt_id: str | None) -> None:
        self._seen(worker_id)
        worker = self.workers[worker_id]
        before = (worker["status"], worker["current_rollout_id"], worker["current_attempt_id"])
        kind = "busy" if status == "busy" else "idle"
        if before == (status, rollout_id, attempt_id):
            worker[f"_{kind}"] = self._now
            return
        self._fact()
        worker["status"] = status
        worker["current_rollout_id"], worker["current_attempt_id"] = rollout_id, attempt_id
        worker[f"last_{kind}_at"] = self._now

    def latest(self, rollout_id: str) -> Json | None:
        attempts = self.attempts[rollout_id]
        return attempts[-1] if attempts else None

    def _attempt(self, rollout_id: str, attempt_id: str) -> Json | None:
        return next((attempt for attempt in self.attempts[rollout_id] if attempt["attempt_id"] == attempt_id), None)

    def rollout(self, rollout_id: str, attempt: Json | None = None) -> Json:
        """Return a rollout as the API shows it, with an attempt if one is given."""
        row = self.rollouts[rollout_id]
        fields: Json = {
            "rollout_id": rollout_id,
            "input": row["_input"],
            "start_time": _seconds(row["start_at"]),
            "end_time": _seconds(row["end_at"]),
            "mode": row["mode"],
            "resources_id": row["resources_id"],
            "status": row["status"],
            "config": json.loads(row["config"]),
            "metadata": row["_metadata"],
        }
        return fields if attempt is None else {**fields, "attempt": self._attempt_answer(attempt)}

    def rollout_and_latest(self, rollout_id: str) -> Json:
        """Return a rollout as it is read: with its latest attempt, if it has one."""
        return self.rollout(rollout_id, self.latest(rollout_id))

    def attempt_answers(self, rollout_id: str) -> list[Json]:
        """Return the attempts of a rollout as the API shows them."""
        return [self._attempt_answer(attempt) for attempt in self.attempts.get(rollout_id, [])]

    def _attempt_answer(self, attempt: Json) -> Json:
        return {
            "rollout_id": attempt["rollout_id"],
            "attempt_id": attempt["attempt_id"],
            "sequence_id": attempt["sequence_id"],
            "start_time": _seconds(attempt["start_at"]),
            "end_time": _seconds(attempt["end_at"]),
            "status": attempt["status"],
            "worker_id": attempt["worker_id"],
            "last_heartbeat_time": self.sign_of_life(attempt),
            "metadata": attempt["_metadata"],
        }

    def ended(self, rollout_ids: Sequence[str]) -> list[Json]:
        """Return those of the rollouts that have ended."""
        there = [rollout_id for rollout_id in rollout_ids if rollout_id in self.rollouts]
        return [self.rollout(rollout_id) for rollout_id in there if self.rollouts[rollout_id]["status"] in TERMINAL]

    def worker(self, worker_id: str) -> Json:
        """Return a worker as the API shows it."""
        row = self.workers[worker_id]
        return {
            "worker_id": worker_id,
            "status": row["status"],
            "heartbeat_stats": row["_stats"],
            "last_heartbeat_time": _seconds(row["_heartbeat"]),
            "last_dequeue_time": _seconds(row["_dequeue"]),
            "last_busy_time": _seconds(_later(row["last_busy_at"], row["_busy"])),
            "last_idle_time": _seconds(_later(row["last_idle_at"], row["_idle"])),
            "current_rollout_id": row["current_rollout_id"],
            "current_attempt_id": row["current_attempt_id"],
        }

    def resources_answer(self, resources_id: str) -> Json:
        """Return a set of resources as the API shows it."""
        row = self.resources[resources_id]
        return {
            "resources_id": resources_id,
            "create_time": _seconds(row["create_at"]),
            "update_time": _seconds(row["update_at"]),
            "version": row["version"],
            "resources": row["_resources"],
        }

    def totals(self) -> Json:
        """Return what statistics count."""
        return {
            "total_rollouts": len(self.rollouts),
            "total_attempts": self.total_attempts,
            "total_spans": len(self.spans),
            "total_resources": len(self.resources),
            "total_workers": len(self.workers),
        }

    def tables(self) -> dict[str, list[Json]]:
        """Return the rows of every projection, without places in the log, each table in the order of its key."""
        attempts = [attempt for of_rollout in self.attempts.values() for attempt in of_rollout]
        # Rewards stand in the order of the log, rollout by rollout; this sort keeps it.
        rewards = sorted(self.rewards, key=lambda row: row["rollout_id"])
        tables: dict[str, list[Json]] = {
            "rollouts": [self.rollouts[key] for key in sorted(self.rollouts)],
            "attempts": sorted(attempts, key=lambda row: (row["rollout_id"], row["attempt_id"])),
            "spans": [_span_row(self.spans[key]) for key in sorted(self.spans)],
            "rewards": rewards,
            "resources": [self.resources[key] for key in sorted(self.resources)],
            "workers": [self.workers[key] for key in sorted(self.workers)],
            "queue": [{"rollout_id": rollout_id} for _, rollout_id in self.queue],
            "run_events": sorted(self.run_events, key=lambda row: row["rollout_id"]),
            **{name: [] for name in ("forks", "fork_masks", "checkpoints", "artifacts", "run_keys")},
            **{name: [] for name in ("threads", "thread_checkpoints", "thread_writes")},
            "labels": [
                {"rollout_id": rollout_id, "label": label}
                for rollout_id in sorted(self.labels)
                for label in sorted(self.labels[rollout_id])
            ],
            "scores": sorted(self.scores, key=lambda row: row["rollout_id"]),
            "scans": [],
            "metrics": [],
            "notes": [{"rollout_id": rollout_id} for rollout_id in sorted(self.notes)],
        }
        return {
            name: [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]
            for name, rows in tables.items()
        }


def text_of(value: Any) -> str:
    """Return the canonical JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """Return the hash of an input."""
    return hashlib.sha256(text_of(value).encode()).hexdigest()


def _span_row(span: Json) -> Json:
    columns = ("rollout_id", "attempt_id", "span_id", "sequence_id", "trace_id", "parent_id", "name")
    row = {name: span[name] for name in (*columns, "start_time", "end_time")}
    return {**row, "status_code": span["status"]["status_code"], "status_message": span["status"]["description"]}


def _seconds(at: int | None) -> float | None:
    return None if at is None else at / 1_000_000


def _later(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)
