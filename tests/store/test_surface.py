"""What the spool offers, and what it asks for."""

import subprocess
import sys

import watchbill.spool


def test_every_public_name_is_there() -> None:
    """`__all__` is the surface: each name can be imported, also those that are imported later."""
    for name in watchbill.spool.__all__:
        assert getattr(watchbill.spool, name) is not None


def test_only_the_standard_library_is_imported() -> None:
    """SPOOL-02: usable without the daemon and with no dependency beyond the standard library."""
    code = """
import sys
before = set(sys.modules)
import watchbill.spool
for name in watchbill.spool.__all__:
    getattr(watchbill.spool, name)
import watchbill.spool.githook, watchbill.spool.reader
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(root for root in roots if root not in sys.stdlib_module_names and root != "watchbill"))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
