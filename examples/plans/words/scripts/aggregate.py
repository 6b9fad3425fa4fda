"""Makes one table of all counts, the longest text first."""

import json
import sys
from pathlib import Path

counts = [json.loads(path.read_text()) for path in Path(sys.argv[1]).glob("*.json")]
rows = [f"| {each['name']} | {each['words']} |" for each in sorted(counts, key=lambda each: -each["words"])]
Path(sys.argv[2]).write_text("\n".join(["| text | words |", "|---|---|", *rows, ""]))
