"""Stop signal of a runner, which also decides whether cancelled attempts return to the queue. Decision 105."""

from __future__ import annotations

import threading


class StopEvent(threading.Event):
    """Event that stops a runner: it claims nothing more, and finishes its attempts.

    If the runner is cancelled before its attempts have ended, they are reported as failed with the reason
    `interrupted`, because the training has ended. After `drain`, their rollouts return to the queue instead, because
    other runners can execute them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_draining = False
        """Whether the rollouts of cancelled attempts return to the queue."""

    def drain(self) -> None:
        """Set the event, and let the rollouts of cancelled attempts return to the queue."""
        self.is_draining = True
        self.set()
