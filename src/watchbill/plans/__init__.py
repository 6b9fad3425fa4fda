"""Plans: a folder with a `plan.md` becomes tasks, their order, and the commands that are run (PLAN-01 to PLAN-08).

Standard library and foundation only: the machine that submits plans may be a Raspberry Pi without compiled packages.
Everything here is pure but for `check.read_plan` and `check.files_below`, which read the disk; `bash_parse` asks bash
about a script.
"""
