"""SVG chart of a training: the fraction of found secrets in each step, and horizontal lines for comparison."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Final

_WIDTH: Final = 760
_HEIGHT: Final = 450
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 24, 108, 52
_INK, _FAINT, _LINE, _MARK = "#1f2933", "#d5dbe1", "#0b62a4", "#b04a00"
_SENTENCE_WIDTH: Final = 100
_MOST_POINTS: Final = 60
"""The maximum number of steps for which points are drawn. The chart of a longer training has only the line."""


def draw(rewards: Sequence[float], marks: Sequence[tuple[str, float]], sentence: str) -> str:
    """Return a chart as SVG.

    Args:
        rewards: for each step, the fraction of the step's games in which the secret was found.
        marks: the name and the height of each horizontal line. The height is a fraction from 0 to 1.
        sentence: the title above the chart. Screen readers read the title instead of the chart.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' font-family="sans-serif" font-size="13" fill="{_INK}">'
    )
    points = [(_x(number, len(rewards)), _y(reward)) for number, reward in enumerate(rewards)]
    dots = points if len(points) <= _MOST_POINTS else []
    return "\n".join([
        head,
        f"<title>{escape(sentence)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        *_sentence(sentence),
        *_axes(len(rewards)),
        *(line for name, height in marks for line in _mark(name, height)),
        f'<polyline fill="none" stroke="{_LINE}" stroke-width="2" points="'
        + " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        + '"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_LINE}"/>' for x, y in dots),
        "</svg>\n",
    ])  # fmt: skip


def _x(number: int, steps: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (number / (steps - 1) if steps > 1 else 0.5)


def _y(part: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * part


def _sentence(sentence: str) -> list[str]:
    lines = textwrap.wrap(sentence, _SENTENCE_WIDTH)
    return [_text(20, 28 + 19 * number, line) for number, line in enumerate(lines)]


def _axes(steps: int) -> list[str]:
    drawn: list[str] = []
    for quarter in range(5):
        y = _y(quarter / 4)
        drawn += [_across(y, _FAINT), _text(_LEFT - 8, y + 4, f"{25 * quarter} %", anchor="end")]
    for number in sorted({0, *range(4, steps, 5), steps - 1}):
        if number == steps - 1 or steps - 1 - number >= 2 or number == 0:
            drawn.append(_text(_x(number, steps), _HEIGHT - _BOTTOM + 20, str(number + 1), anchor="middle"))
    return [*drawn, _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, "step", anchor="middle")]


def _mark(name: str, height: float) -> list[str]:
    y = _y(height)
    return [_across(y, _MARK, 'stroke-dasharray="6 4"'), _text(_LEFT + 6, y - 6, name, fill=_MARK)]


def _across(y: float, colour: str, more: str = "") -> str:
    return f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" {more}/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", fill: str = _INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
