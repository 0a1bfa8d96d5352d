"""Program that prints the OpenAPI document of `rollbook serve`: `python -m store.cli.openapi`."""

from __future__ import annotations

import json
import sys

from store.cli.example_parts import front_end
from store.server.app import openapi

if __name__ == "__main__":
    json.dump(openapi(type(front_end())), sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")
