"""Who makes the calls of a task, as the log names them; beside what a call's own arguments say."""

from contextvars import ContextVar
from typing import Final

current: Final[ContextVar[str | None]] = ContextVar("rollbook_actor", default=None)
"""`key:<id>`, `dashboard` …; None where only the call itself can tell. A command that names its actor keeps it."""
