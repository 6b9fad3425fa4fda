"""Lists the texts of a folder in manifest.json, and writes a prompt for each into prompts/ID.txt."""

import json
import sys
from pathlib import Path

folder, batch = Path(sys.argv[1]), Path(sys.argv[2])
(batch / "prompts").mkdir(exist_ok=True)
texts = sorted(folder.glob("*.txt"))
for path in texts:
    prompt = f"Summarize this text in one sentence.\n\n{path.read_text(encoding='utf-8')}"
    (batch / "prompts" / f"{path.stem}.txt").write_text(prompt, encoding="utf-8")
(batch / "manifest.json").write_text(json.dumps({"texts": [{"id": path.stem} for path in texts]}, indent=2))
print(json.dumps({"texts": len(texts)}))
