"""A fleet's life on a folder, to the end of its batches; prints what was acknowledged, line by line."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.fleet_life import FleetLife


def say(said: object) -> None:
    print(json.dumps(said), flush=True)


FleetLife(Path(sys.argv[1]), ("a", "b", "brain"), say).run()
say(["over"])
