"""The daemon: `watchbill up`, from the command line to the last answer."""

from watchbill.daemon.main import run

__all__ = ["run"]
