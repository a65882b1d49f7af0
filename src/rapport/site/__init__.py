"""A site: its directory, its `site.toml`, and the checks over it."""
