"""Bundles: pages of chosen rollouts as a folder that a browser opens without a server. Decision 100."""
