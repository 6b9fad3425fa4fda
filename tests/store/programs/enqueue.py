"""Enqueue some events one by one and say what became of each: for runs under strace with injected errors."""

import os
import sys

from watchbill.errors import WatchbillError
from watchbill.spool import Spool

spool = Spool(sys.argv[1], durability=sys.argv[2])  # type: ignore[arg-type]
for number in range(int(sys.argv[3])):
    try:
        said = f"enqueued {spool.enqueue({'id': f'{number}'})}"
    except WatchbillError as error:
        said = f"refused {type(error).__name__}"
    os.write(1, said.encode() + b"\n")
spool.close()
