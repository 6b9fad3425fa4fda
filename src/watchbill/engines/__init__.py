"""Engines: the programs that host models, behind one protocol.

`registry.make_engine` makes the one that a table of the config describes.
"""
