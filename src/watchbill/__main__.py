"""The way in of `watchbill`, of `python -m watchbill`, and of the daemon that starts itself in the background.

Ctrl-C is taken care of before anything else is imported: the imports of a command take most of its time.
"""

from watchbill.interrupts import leave_at_once

__all__ = ["main"]


def main() -> None:
    """Runs the `watchbill` command and leaves with its exit code."""
    leave_at_once()
    from watchbill.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
