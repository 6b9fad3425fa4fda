"""The command line. Sub-commands are imported lazily, so that `watchbill status` starts in a blink."""


def main() -> None:
    """Runs the `watchbill` command."""
    from watchbill.cli.app import run

    run()
