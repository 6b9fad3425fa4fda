"""Plays the daemon: loads one model, says where, and waits to be killed.

host_engine.py '{"root": ..., "rules": {...}, "model": {...}}'
"""

import asyncio
import json
import sys
from pathlib import Path

from watchbill.catalog import EngineRules, Model
from watchbill.engines.registry import make_engine
from watchbill.processes.registry import Registry


async def main(words: str) -> None:
    asked = json.loads(words)
    root = Path(asked["root"])
    engine = make_engine(EngineRules(**asked["rules"]), root=root, on_death=lambda *_: None)
    warm = await engine.load(Model(**asked["model"]), 1)
    guards = [record.guard_pid for record in Registry(root).records()]
    print(json.dumps({"port": warm.endpoint.port, "guard_pids": guards}), flush=True)
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1]))
