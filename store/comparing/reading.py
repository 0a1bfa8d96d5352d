"""Comparisons of selections and effects of versions, read from one session. Decision 111."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from store.comparing.comparison import SideRows, compared, version_change
from store.comparing.selections import step_range, text_of
from store.comparing.windows import STEPS, ResourcesVersion, StepWindows, windows_of
from store.db.dialect import ReadSession
from store.db.queries.annotations import labels_of
from store.db.queries.compared_rollouts import (
    ComparedRow,
    VersionStep,
    compared_rows,
    dimensions_of,
    version_steps,
    window_rows,
)
from store.db.queries.input_starts import input_titles
from store.db.queries.rollout_list import RolloutListQuery
from store.errors import NotFound
from store.models.comparisons import SelectionComparison, VersionChange, VersionEffect
from store.models.missing_rewards import MissingReward

_TITLE_CHARACTERS = 80


async def compared_selections(
    session: ReadSession, a: RolloutListQuery, b: RolloutListQuery, missing: MissingReward, *, pairs: bool = True
) -> SelectionComparison:
    """Compare the rollouts of two selections.

    Args:
        session: a connection to the database, with a snapshot.
        a: the first selection.
        b: the second selection; differences are its values minus those of `a`.
        missing: how ended rollouts without a reward count.
        pairs: whether rewards are paired by task if at least two tasks are in both selections.

    Raises:
        TooLarge: a selection has too many rollouts.
    """
    sides: list[SideRows] = []
    for name, query in (("a", a), ("b", b)):
        sides.append(await side_rows(session, query, name))
    comparison = compared(sides[0], sides[1], missing, pairs=pairs)
    return await titled_comparison(session, comparison, sides)


async def side_rows(session: ReadSession, query: RolloutListQuery, name: str) -> SideRows:
    """Return the rollouts of one side.

    Raises:
        TooLarge: the selection has too many rollouts; the error names the side.
    """
    rows = await compared_rows(session, query, name)
    return SideRows(text_of(query), rows, await dimensions_of(session, [row.rollout_id for row in rows]))


async def titled_comparison(
    session: ReadSession, comparison: SelectionComparison, sides: list[SideRows]
) -> SelectionComparison:
    """Return a comparison with the beginnings of inputs as titles, and with the labels of the moved rollouts.

    Only the titles of the tasks of `sides` are read; others stay.
    """
    listed = {entry.task for entry in (*comparison.tasks, *comparison.moved)}
    examples = {row.input_sha256: row.rollout_id for side in sides for row in side.rows if row.input_sha256 in listed}
    starts = await input_titles(session, list(examples.values()), _TITLE_CHARACTERS)
    titles = {task: starts.get(rollout_id) for task, rollout_id in examples.items()}
    labels = await labels_of(session, rollout_ids=[entry.rollout_id for entry in comparison.moved])
    tasks = [entry.model_copy(update={"title": titles.get(entry.task, entry.title)}) for entry in comparison.tasks]
    moved = [
        entry.model_copy(
            update={"title": titles.get(entry.task, entry.title), "labels": labels.get(entry.rollout_id, [])}
        )
        for entry in comparison.moved
    ]
    return comparison.model_copy(update={"tasks": tasks, "moved": moved})


async def version_changes(
    session: ReadSession,
    missing: MissingReward,
    *,
    mode: str | None = "train",
    steps: int = STEPS,
    limit: int = 50,
    used: Sequence[VersionStep] | None = None,
) -> list[VersionChange]:
    """Return the effects of versions on the rewards. The version with the latest first step comes first.

    Args:
        session: a connection to the database.
        missing: how ended rollouts without a reward count.
        mode: only rollouts of this mode; None for all.
        steps: the number of steps of each window.
        limit: the maximum number of versions; earlier ones are left out.
        used: the result of `version_steps`, if the caller has it.
    """
    windows = windows_of(await version_steps(session, mode) if used is None else used, steps)[-limit:]
    rows = await window_rows(session, mode, [part for entry in windows for part in entry.parts()])
    by_step: defaultdict[tuple[str | None, int | None, int | None], list[ComparedRow]] = defaultdict(list)
    for row in rows:
        by_step[row.resources_id, row.resources_version, row.step].append(row)
    changes: list[VersionChange] = []
    for entry in reversed(windows):
        before, after = (
            SideRows(
                text_of(selection),
                [row for step in at for row in by_step[entry.of.resources_id, selection.resources_version, step]],
            )
            for selection, at in zip(selections_of(entry, mode), (entry.before, entry.after), strict=True)
        )
        changes.append(version_change(entry, before, after, missing))
    return changes


def selections_of(windows: StepWindows, mode: str | None) -> tuple[RolloutListQuery, RolloutListQuery]:
    """Return the rollouts of both windows as selections."""
    before, after = (
        RolloutListQuery(
            modes=() if mode is None else (mode,),
            resources_id=part.resources_id,
            resources_version=part.version,
            ranges=(step_range(part.steps[0], part.steps[-1]),),
        )
        for part in windows.parts()
    )
    return before, after


async def version_effect(
    session: ReadSession,
    of: ResourcesVersion,
    missing: MissingReward,
    *,
    mode: str | None = "train",
    steps: int = STEPS,
    pairs: bool = True,
) -> VersionEffect:
    """Return the effect of a version: its first steps against the last steps of the version before.

    The arguments are those of `version_changes` and `compared_selections`.

    Raises:
        NotFound: no rollout of the mode used the version at a step, or none used an earlier version at an earlier step.
    """
    used = await version_steps(session, mode, of.resources_id)
    windows = next((entry for entry in windows_of(used, steps) if entry.of == of), None)
    if windows is None:
        raise NotFound("effect", str(of), _missing_effect(of, mode, {row.resources_version for row in used}))
    comparison = await compared_selections(session, *selections_of(windows, mode), missing, pairs=pairs)
    return VersionEffect(
        resources_id=of.resources_id,
        version=of.version,
        against=windows.against,
        step=windows.step,
        steps=steps,
        mode=mode,
        a_steps=windows.before,
        b_steps=windows.after,
        comparison=comparison,
    )


def _missing_effect(of: ResourcesVersion, mode: str | None, versions: set[int]) -> str:
    subject = "rollout" if mode is None else f"{mode} rollout"
    if of.version not in versions:
        return f"No {subject} with a step used {of.resources_id} v{of.version}"
    return f"No {subject} with an earlier step used an earlier version of {of.resources_id} than v{of.version}"
