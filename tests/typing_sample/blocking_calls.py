"""Calls of a store without `await`, as a user writes them."""

from typing import assert_type

import rollbook


def main() -> None:
    with rollbook.open_sync("sqlite:///run.db", create=True) as opened:
        assert_type(opened, rollbook.SyncStore)
        queued = opened.enqueue_rollout({"question": "2 + 2"}, mode="train")
        assert_type(queued, rollbook.Rollout)
        assert_type(opened.dequeue_rollout("worker-1"), rollbook.AttemptedRollout | None)
        assert_type(opened.log.verify(), rollbook.VerifyReport)
        for event in opened.log.tail():
            assert_type(event, rollbook.LoggedEvent)
        print(opened.query_spans(queued.rollout_id))


if __name__ == "__main__":
    main()
