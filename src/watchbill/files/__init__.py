"""Files: the mechanisms by which everything here touches a disk, each in one place.

Standard library only, and nothing of ours but this package: a git hook and a small device import it, too.
"""
