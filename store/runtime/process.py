"""The id of the current process, cached; a fork updates it."""

import os

number = os.getpid()
"""The id of this process."""


def _forked() -> None:
    global number  # noqa: PLW0603 (the child is another process)
    number = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
