"""Counts the words of one text."""

import json
import sys
from pathlib import Path

text, output = Path(sys.argv[1]), Path(sys.argv[2])
found = {"name": text.stem, "words": len(text.read_text(encoding="utf-8").split())}
output.write_text(json.dumps(found))
print(json.dumps(found))
