"""Permissions: which command lines a worker may run, by the rules of permissions.toml."""
