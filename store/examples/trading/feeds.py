"""Data that the tools of the trading desk return, for one fixed day."""

from __future__ import annotations

from typing import Final

DATE: Final = "2026-11-20"
TICKERS: Final = ("RIG", "TSDD")
HOLDINGS: Final = {"RIG": 100, "TSDD": 40}

_FEEDS: Final = {
    "MARKET": {
        "geopolitical_scanner": "Talks go on and the straits are calm.",
        "market_movers_scanner": "Drillers rise, batteries are weak.",
        "sector_scanner": "Energy has a strong month.",
        "smart_money_scanner": "Funds move from growth to energy.",
        "industry_deep_dive": "Day rates are high, orders of lithium sink.",
    },
    "RIG": {
        "get_prices": "The price rises for the fourth day.",
        "get_posts": "The crowd expects a strong quarter.",
        "get_news": "A record contract lifts the order book.",
        "get_filings": "Debt is still high.",
    },
    "TSDD": {
        "get_prices": "The price falls below its mean.",
        "get_posts": "Fear of a weak quarter.",
        "get_news": "A plant delays its opening.",
        "get_filings": "Profit is flat.",
    },
}


def read(scope: str, feed: str) -> str:
    """Return the data of a feed about a scope."""
    return _FEEDS.get(scope, {}).get(feed, f"Nothing about {scope}.")
