"""Harbor's published models of ATIF, as a schema: `python -m tests.atif.harbor` writes the schema anew.

The package asks for Python 3.12 and many other packages, of which its models need none but pydantic:
`pip install --no-deps --ignore-requires-python --target DIR harbor==0.26.0`, with DIR in `PYTHONPATH`.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from jsonschema import Draft202012Validator

SCHEMA = Path(__file__).parent / "data/atif.schema.json"
VERSION = "0.26.0"
_COMMENT = f"Made from the models of harbor {VERSION} (Apache License 2.0), without their texts"


def model() -> Any:
    """Return Harbor's model of a document.

    Raises:
        ImportError: the package is not installed.
    """
    return import_module("harbor.models.trajectories").Trajectory


def schema() -> dict[str, Any]:
    """Return the schema of Harbor's model."""
    return {"$comment": _COMMENT, **_without_texts(model().model_json_schema())}


def check(document: dict[str, Any]) -> None:
    """Check a document against the schema.

    Raises:
        ValidationError: the document breaks a rule.
    """
    validator: Any = Draft202012Validator(json.loads(SCHEMA.read_bytes()))
    validator.validate(document)


def _without_texts(value: Any) -> Any:
    """Return a schema without titles and descriptions, but with the properties of such names."""
    if isinstance(value, list):
        return [_without_texts(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        name: _without_texts(item)
        for name, item in cast("dict[str, Any]", value).items()
        if not (name in {"title", "description"} and isinstance(item, str))
    }


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=1) + "\n")
