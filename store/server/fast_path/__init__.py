"""The fast path, which answers hot calls without the application (see `dispatch`). It can be switched off."""
