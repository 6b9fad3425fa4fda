"""`completion`: shell completion for Watchbill's commands and options."""

from typing import Annotated, Literal

from cyclopts import Parameter

from watchbill.cli.terminal import Terminal

__all__ = ["completion"]


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None,
        Parameter(name="SHELL", help="Default: the shell that runs this.", show_default=False),
    ] = None,
    /,
    *,
    install: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Install the script for this user instead of printing it."
        ),
    ] = False,
) -> None:
    """Print the completion script of a shell, or install it.

    Example: source <(watchbill completion bash)
    """
    from watchbill.cli.app import build_app

    app, terminal = build_app(), Terminal()
    if install:
        terminal.show(f"installed {app.install_completion(shell=shell)}; it works in the next shell")
        return
    terminal.show(app.generate_completion(prog_name="watchbill", shell=shell).rstrip())
