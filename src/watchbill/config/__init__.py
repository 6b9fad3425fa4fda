"""The config: a TOML file in, a catalog or the whole list of what is wrong out.

    load        all of it in order: read, validate, settle, check, build
    file        the file on the disk               watchbill.toml   its text: values, lines, and back
    values      tables, and kinds of value         keys        keys of a table, spelled and described
    checks      what every check works with        report      wording of wrong values
    document    all sections together              across      references between sections, and fit
    examine     what this machine says             planned     what this version does not have yet
    show, reference, starter                       the way back to a text

One file for each section of the file, with its tables, defaults, checks and what it becomes in the catalog:

    server   devices   engines   models   sets   lanes   policy   rotation (and epochs)   journal (and alerts)   spools
    nats   process_types   fleet (with coordinator and agents)

Imports pydantic, so it is imported by `up` and `config` only.
"""

from watchbill.config.examine import Finding, MachineFacts, ModelFacts, examine
from watchbill.config.file import ConfigFile, Stamp
from watchbill.config.load import Loaded, default_catalog, load, parse, read, read_text
from watchbill.config.lookup import find_config
from watchbill.config.server import refuse_open_bind

__all__ = [
    "ConfigFile", "Finding", "Loaded", "MachineFacts", "ModelFacts", "Stamp", "default_catalog", "examine",
    "find_config", "load", "parse", "read", "read_text", "refuse_open_bind",
]  # fmt: skip
