"""`python -m watchbill`: the command without its script, also for the daemon that starts itself in the background."""

from watchbill.cli import main

main()
