"""A fault of the coordinator's own code is one of the batch that it was working on: all others go on (FLEET-09)."""

import json

from support.eventually import wait_until
from support.fleet_folder import FleetFolder
from watchbill.fleet.folder import places

#: The coordinator as people start it, with a bug: reopening a batch of the plan `bad` fails.
BROKEN = """
import sys
from watchbill.fleet.coordinator import inbox
sound = inbox.reopening
def broken(disk, ledger, request):
    return {}["ghost"] if ledger.plan == "bad" else sound(disk, ledger, request)
inbox.reopening = broken
from watchbill.cli import run
sys.exit(run(["coordinator", "--root", sys.argv[1]]))
"""
TASK = "### a\n- **command**: `echo x`\n"


def test_a_batch_at_which_coordinators_fail_is_set_aside_and_others_go_on(fleet: FleetFolder) -> None:
    """FLEET-09: two coordinators fail at it; the third refuses the request with the reason, and serves everybody else.
    A sound coordinator takes the batch up again."""
    fleet.may_fault = True
    fleet.write_plan("bad", TASK)
    fleet.write_plan("good", TASK)
    coordinator = fleet.start("-c", BROKEN, str(fleet.root))
    fleet.start_agent("cpu-1")
    bad = fleet.submit("bad")
    assert fleet.wait(bad) == 0
    told = fleet.plan("retry", "a", "--batch", bad, "--quiet")
    # It waits for what becomes of the request, for some seconds: three coordinators start one after the other.
    assert told.returncode == 0 or "the coordinator failed at it (KeyError: 'ghost')" in told.stderr
    refused = fleet.root / places.REFUSED
    wait_until(lambda: any(refused.glob(f"{bad}.*.reopen")))
    (request,) = refused.glob(f"{bad}.*.reopen")
    why = json.loads(request.read_text())["error"]
    assert "the coordinator failed at it (KeyError: 'ghost')" in why and "start the coordinator anew" in why
    assert fleet.wait(fleet.submit("good")) == 0
    assert coordinator.poll() is None
    coordinator.terminate()
    coordinator.wait()
    fleet.start_coordinator()
    assert fleet.plan("retry", "a", "--batch", bad, "--quiet").returncode == 0
    wait_until(lambda: len(fleet.entries("bad", bad, "accept")) == 2)
