"""Program that prints the OpenAPI document of `rollbook serve`: `python -m store.cli.openapi`."""

from __future__ import annotations

import json
import sys

from store.examples.trading.front_end.trading_front_end import TradingFrontEnd
from store.server.app import openapi

if __name__ == "__main__":
    json.dump(openapi(TradingFrontEnd), sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")
