"""`python -m watchbill.cli`: the command without its script, for the daemon that starts itself in the background."""

from watchbill.cli import main

main()
