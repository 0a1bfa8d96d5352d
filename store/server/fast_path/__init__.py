"""The fast path: hot calls answered without the application, see `dispatch`. It can be switched off."""
