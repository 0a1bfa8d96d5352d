"""The JSON decoder gives its recorded answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.otel.recorded_json import answer, cases, exact


@pytest.mark.parametrize("case", cases())
def test_a_recorded_request_has_its_recorded_answer(case: dict[str, Any]) -> None:
    assert exact(answer(case["request"])) == exact(case["answer"])
