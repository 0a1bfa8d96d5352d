"""The environment of Agent-lightning, as `pip install` creates it today."""

from __future__ import annotations

from pathlib import Path

from tests.peer_environment import REQUIREMENT, PeerEnvironment, PeerMissing

__all__ = ["REQUIREMENT", "PeerMissing", "python"]

_ENVIRONMENT = PeerEnvironment("bench-peer", [REQUIREMENT])


def python() -> Path:
    """Return the interpreter that has the peer, installing it at first.

    Raises:
        PeerMissing: there is no index to install from, or something does not fit this Python.
    """
    return _ENVIRONMENT.python()
