"""Settings of the trading front end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from store.domain.statuses import UNRESPONSIVE_SECONDS
from store.interface.phase_graphs import is_default, phase_graph_in, publish_default
from store.interface.store import Store
from store.models import PhaseGraph, RolloutConfig
from store.run_folders.folder_phases import TA


@dataclass(frozen=True, slots=True)
class TradingSettings:
    """Settings of posted runs, and the source of runs while the database is unavailable."""

    graph: PhaseGraph | None = TA
    """The phase graph of posted runs; None to use only the phase graph in the latest resources."""
    unresponsive_seconds: float = UNRESPONSIVE_SECONDS
    """The time without a sign of life after which a posted run fails."""
    fallback: Path | None = None
    """The directory of the run folders that are read while the database is unavailable; None if there is none."""

    @property
    def config(self) -> RolloutConfig:
        """The config of a posted run."""
        return RolloutConfig(unresponsive_seconds=self.unresponsive_seconds)

    async def resources_id(self, store: Store) -> str | None:
        """Return the id of the resources that contain the phase graph of a posted run; None for the latest resources.

        The latest resources are used if they contain a phase graph that a program has published. Otherwise the default
        graph is published under a separate id.
        """
        if self.graph is None:
            return None
        latest = await store.get_latest_resources()
        if latest is not None and not is_default(latest.resources_id) and phase_graph_in(latest) is not None:
            return None
        return await publish_default(store, self.graph)
