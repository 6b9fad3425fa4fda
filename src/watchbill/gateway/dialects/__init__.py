"""Dialects: the protocols in which clients speak to Watchbill. Each one is readable alone."""
