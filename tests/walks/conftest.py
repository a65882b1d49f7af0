from rapport.testing.spark import spark  # noqa: F401
