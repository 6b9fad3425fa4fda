"""Runs `watchbill` as on a machine of its own: with a boot and a host name that no other one has.

    python machine.py NAME '{"SILENCE_MS_MAX": 2000}' coordinator --root ROOT

No kernel can be asked about its processes, so what others know of it is in the shared folder alone. Bounds of
`watchbill.fleet.limits` can be shortened, so that a trial need not wait for minutes.
With the name "-" it is this machine after all.
"""

import json
import sys

from watchbill.files import host
from watchbill.fleet import limits


def main() -> None:
    _, name, bounds, *words = sys.argv
    for bound, value in json.loads(bounds).items():
        assert hasattr(limits, bound), bound
        setattr(limits, bound, tuple(value) if isinstance(value, list) else value)
    if name != "-":
        # Before anything else is imported, so that everybody gets these.
        host.boot_id = lambda: f"boot-of-{name}"
        host.host_name = lambda: name
    sys.argv = ["watchbill", *words]

    from watchbill.__main__ import main as watchbill

    watchbill()


if __name__ == "__main__":
    main()
