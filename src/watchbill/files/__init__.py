"""Files: every way in which Watchbill writes to a disk, each in one place.

Standard library only, and nothing else of Watchbill: git hooks and small devices import it, too.
"""
