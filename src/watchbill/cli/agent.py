"""`agent` and `signal`: run an agent of a fleet, and send signals to one. Neither needs a daemon."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from watchbill import limits
from watchbill.cli.fleet_root import find_fleet
from watchbill.cli.options import QUIET, FleetRoot
from watchbill.errors import ConfigError
from watchbill.files.host import host_name
from watchbill.root import find_root

__all__ = ["agent", "signal"]

_Quiet = Annotated[bool, QUIET]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class _Card:
    """The options of an agent that has a card or a model."""

    device: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="The card whose memory its tasks borrow, as gpu:1, or a pair, as gpu:0,gpu:3. Needs a daemon: the one "
            "of this root, or one of its own.",
        ),
    ] = None
    model: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="The model that its tasks ask unless they name one. Needs a daemon as --device does.",
        ),
    ] = None
    port: Annotated[int, Parameter(help="Where its tasks ask models; 0 picks a port that is free.")] = 0
    llm_slots: Annotated[int, Parameter(help="Tasks of class llm that run at the same time.")] = 1


_NO_CARD = _Card()
_Nats = Annotated[
    str | None,
    Parameter(
        show_default=False,
        help="Take tasks over a NATS server instead of from a shared folder: its address, as nats://10.0.0.5:4222, or "
        "config for the servers of [nats] in the config. [nats] also has the credentials. Needs `watchbill door` on a "
        "machine with the folder.",
    ),
]


def agent(
    name: Annotated[
        str, Parameter(show_default=False, help="Its name, one per shared folder. Default: cpu-HOST.")
    ] = "",
    /,
    *,
    root: FleetRoot = None,
    nats: _Nats = None,
    cpu_slots: Annotated[
        int | None,
        Parameter(
            show_default=False,
            help="Tasks of class cpu that run at the same time. Default: one for each processor.",
        ),
    ] = None,
    card: _Card = _NO_CARD,
    once: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Leave when the queue has nothing more for it."),
    ] = False,
    quiet: _Quiet = False,
) -> int:
    """Run an agent that works on the tasks of plans.

    It claims tasks from a shared folder, runs each in a process tree of its own, and reports how it ended.

    Stays until Ctrl-C, SIGTERM or `watchbill signal NAME stop`. Running tasks may end first: for 20 s after SIGTERM, as
    long as they take after the signal. What it leaves behind when it is killed, its next start ends and reports.

    Example: watchbill agent cpu-1 --root /mnt/shared --cpu-slots 4
    Example: watchbill agent gpu-1 --nats nats://10.0.0.5:4222 --device gpu:1
    """
    from watchbill.fleet.folder.places import check_agent_name

    if root is not None and nats is not None:
        raise ConfigError(
            "--root and --nats exclude each other: the folder is either here or behind the door"
        )
    chosen = check_agent_name(name or f"cpu-{host_name()}")
    slots = cpu_slots if cpu_slots is not None else min(os.cpu_count() or 1, limits.AGENT_SLOTS_MAX)
    if not 0 <= slots <= limits.AGENT_SLOTS_MAX:
        raise ConfigError(f"--cpu-slots must be from 0 to {limits.AGENT_SLOTS_MAX}")
    from watchbill.fleet.logs import set_up_logs

    set_up_logs(os.environ, [logging.StreamHandler()], logging.WARNING if quiet else logging.NOTSET)

    return _run(chosen, root, nats, slots, card, once=once)


def _run(name: str, root: Path | None, nats: str | None, slots: int, card: _Card, *, once: bool) -> int:
    from watchbill.fleet.agent.process import DeviceOptions, run_agent, run_agent_behind_door

    devices = tuple(filter(None, (each.strip() for each in (card.device or "").split(","))))
    if card.port and not devices and not card.model:
        raise ConfigError("--port needs --device or --model; add one, for example --device gpu:0")
    has_any = devices or card.model
    if not slots and not has_any:
        raise ConfigError(
            "an agent without slots, device and model runs nothing; give it --cpu-slots 1, --device or --model"
        )
    device = DeviceOptions(devices, card.model or "", card.port, card.llm_slots) if has_any else None
    state = find_root(None).path
    if nats is None:
        return run_agent(name, find_fleet(root), state, cpu_slots=slots, once=once, device=device)
    from watchbill.cli.broker_choice import choose_broker

    broker = choose_broker(nats)
    return run_agent_behind_door(
        name, broker.reach, broker.subject, state, cpu_slots=slots, once=once, device=device
    )


def signal(
    agent: Annotated[str, Parameter(help="The agent's name.")],
    order: Annotated[
        Literal["stop", "hold", "resume", "abort", "kill"],
        Parameter(
            help="stop: finish and leave. hold: claim nothing more. resume: claim again. abort: end a task. "
            "kill: end it with SIGKILL."
        ),
    ],
    task: Annotated[
        str, Parameter(show_default=False, help="The task for abort and kill, as TASK or BATCH.TASK.")
    ] = "",
    /,
    *,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Tell an agent to stop, to pause, or to end a task.

    Leaves a small file in the shared folder, which the agent removes once it has obeyed.

    Example: watchbill signal gpu-1 abort transcribe_7
    """
    from watchbill.cli.signalling import send_signal

    return send_signal(agent, order, task, root=root, quiet=quiet)
