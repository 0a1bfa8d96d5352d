"""Authentication: API keys, roles, origins, TLS."""
