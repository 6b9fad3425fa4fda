"""Which spool a command means: a folder, or a `[spool.NAME]` of the config.

A text with a slash, and the name of a folder that is a spool, mean that folder; any other word is looked up in the
config. If the config has spools but none of that name, the word means an existing folder or is refused: a mistyped name
does not become a new spool in the present folder. Only the spools of the config are read: a spool must work where a
model's file or an API key is missing.
"""

import os
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

from cyclopts import Group, Parameter

from watchbill.catalog import SpoolRules
from watchbill.cli.app import WrongUse
from watchbill.cli.options import CONFIG_DEFAULT, QUIET, ROOT
from watchbill.cli.terminal import Terminal
from watchbill.errors import ConfigError
from watchbill.root import command_for, find_root
from watchbill.runtime.spools import folder_of, is_on_broker, open_spool
from watchbill.spool.backend import AnySpool
from watchbill.suggest import did_you_mean

__all__ = ["AsJson", "Chosen", "Config", "Which", "configured", "in_config"]

_WHICH = Group("Which spool", sort_key=80)

Config = Annotated[
    Path | None,
    Parameter(
        name="--config",
        group=_WHICH,
        help=f"The config with the spool's table. {CONFIG_DEFAULT}",
        show_default=False,
    ),
]


AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON.")]


class Chosen(NamedTuple):
    """A spool's rules, and the root that their paths are relative to."""

    rules: SpoolRules
    root: Path

    @property
    def folder(self) -> Path:
        return folder_of(self.rules, self.root)

    @property
    def named(self) -> str:
        """By what a command names this spool: the folder, so that it works from everywhere, else its name."""
        return self.rules.name if is_on_broker(self.rules) else str(self.folder)

    def command(self, *words: str) -> str:
        """A command for this spool, for a person to paste."""
        return command_for(self.root, "spool", *words, "--spool", self.named)

    def make(self, *, signed: bool = False) -> AnySpool:
        """The spool; missing folders or streams are made."""
        return open_spool(self.rules, self.root, signed=signed)

    def look(self) -> AbstractContextManager[AnySpool]:
        """The spool, for commands that only look or move: a mistyped folder is not made into a spool."""
        if not is_on_broker(self.rules) and not (self.folder / "queue").is_dir():
            raise ConfigError(
                f"there is no spool in {self.folder}; the first event makes one: {self.command('enqueue')}"
            )
        return closing(self.make())


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Which:
    """Which spool."""

    spool: Annotated[
        str | None,
        Parameter(
            name=["--spool", "-s"],
            group=_WHICH,
            help="The spool's folder, or its name in the config. Default: the config's only spool.",
            show_default=False,
        ),
    ] = None
    config: Config = None
    root: Annotated[Path | None, ROOT] = None
    quiet: Annotated[bool, QUIET] = False

    @property
    def terminal(self) -> Terminal:
        return Terminal(quiet=self.quiet)

    def choose(self) -> Chosen:
        """The spool that is meant. Raises WrongUse or ConfigError."""
        root = find_root(self.root).path
        if self.spool is None:
            return Chosen(_only(configured(self.config, self.root)), root)
        folder = Path(self.spool).expanduser()
        if not self.spool or "\0" in self.spool:
            raise WrongUse("--spool is empty; name a folder or a spool of the config")
        if "/" not in self.spool and not (folder / "queue").is_dir():
            spools = configured(self.config, self.root)
            if self.spool in spools:
                return Chosen(spools[self.spool], root)
            if spools and not folder.exists():
                raise WrongUse(_unknown(self.spool, list(spools)))
        return Chosen(SpoolRules(self.spool, os.path.abspath(folder), MappingProxyType({})), root)


def in_config(name: str, config: Path | None, root: Path | None) -> SpoolRules | None:
    """The config's spool of this name."""
    return configured(config, root).get(name)


def configured(config: Path | None, root: Path | None) -> dict[str, SpoolRules]:
    """Every spool of the config."""
    from watchbill.config import find_config, read

    found = find_root(root)
    return dict(read(find_config(config, found), root=found.path, only=("spool", "nats")).catalog.spools)


def _unknown(name: str, known: list[str]) -> str:
    return f"the config has no spool {name}: {did_you_mean(name, known)}; a folder of that name is ./{name}"


def _only(spools: dict[str, SpoolRules]) -> SpoolRules:
    if len(spools) == 1:
        return next(iter(spools.values()))
    if not spools:
        raise WrongUse("no spool is named: say --spool DIR, or add [spool.NAME] to the config")
    raise WrongUse(f"the config has several spools; say --spool with one of {', '.join(spools)}")
