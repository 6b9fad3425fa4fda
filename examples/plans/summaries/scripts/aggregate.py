"""Makes one page of all summaries, by the names of their texts."""

import sys
from pathlib import Path

pages = [
    f"## {path.stem}\n\n{path.read_text().strip()}\n" for path in sorted(Path(sys.argv[1]).glob("*.txt"))
]
Path(sys.argv[2]).write_text("\n".join(["# Summaries\n", *pages]))
