"""The config: a TOML file in, a catalog or the whole list of what is wrong out.

    locate    where each key stands          document  every key, kind and default
    fields    kinds of value                 planned   what this version does not have yet
    problems  wording of wrong values        drivers   which keys each driver reads
    settle    defaults that depend           draft, check, fit   what is wrong between tables
    build     document -> catalog            load      all of it in order
    reading   the file on the disk
    examine   what this machine says         spelling, show, reference, starter   the way back to text

Imports pydantic, so it is imported by `up` and `config` only.
"""

from watchbill.config.check import refuse_open_bind
from watchbill.config.examine import Finding, MachineFacts, ModelFacts, examine
from watchbill.config.load import Loaded, default_catalog, find_config, load, parse, read, read_text
from watchbill.config.reading import ConfigFile, Stamp

__all__ = [
    "ConfigFile", "Finding", "Loaded", "MachineFacts", "ModelFacts", "Stamp", "default_catalog", "examine",
    "find_config", "load", "parse", "read", "read_text", "refuse_open_bind",
]  # fmt: skip
