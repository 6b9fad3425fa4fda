"""The set-up of a clone, in odd places."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "setup.py"


def test_the_sources_are_found_whatever_the_path_and_the_locale(tmp_path: Path) -> None:
    """Issue 19: Python reads the link to the sources in the encoding of the locale, so it names no folder."""
    spec = importlib.util.spec_from_file_location("watchbill_setup", TOOL)
    assert spec is not None and spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    sources, site = tmp_path / "Mödel ßrv" / "src", tmp_path / "Mödel ßrv" / ".venv" / "site-packages"
    for folder in (sources, site):
        folder.mkdir(parents=True)
    (sources / "here.py").write_text("print('found')")
    (site / "link.pth").write_text(f"{sources}\n", "utf-8")
    setup.make_relative(site / "link.pth")
    code = f"import site; site.addsitedir({str(site)!r}); import here"
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, env=environment, check=False
    )
    assert done.stdout == b"found\n", done.stderr
