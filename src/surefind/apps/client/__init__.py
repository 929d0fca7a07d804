"""A client of the HTTP service, for Python programs; it needs httpx and pydantic, and no model."""
