"""Lists the texts of a folder as JSON: {"texts": [{"id": ..., "path": ...}, ...]}."""

import json
import sys
from pathlib import Path

folder, manifest = Path(sys.argv[1]), Path(sys.argv[2])
texts = [{"id": path.stem, "path": str(path.resolve())} for path in sorted(folder.glob("*.txt"))]
manifest.write_text(json.dumps({"texts": texts}, indent=2))
print(json.dumps({"texts": len(texts)}))
