"""The parts of the fleet one by one: slips, records, ledger, policy, heartbeats, signals, places, the board."""

import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.memory_disk import MemoryDisk, Steps
from watchbill import limits
from watchbill.errors import IllegalTransition, OursError
from watchbill.files import checked_log
from watchbill.files.host import boot_id, start_time
from watchbill.fleet import limits as fleet_limits
from watchbill.fleet.folder import places, signals
from watchbill.fleet.folder.agent_report import AgentReport, HeldWhy, OnHold
from watchbill.fleet.folder.board import Board
from watchbill.fleet.folder.disk import FolderDisk
from watchbill.fleet.folder.heartbeat import (
    Heartbeat,
    Pulse,
    Watcher,
    kernel_says,
    read_heartbeat,
    write_heartbeat,
)
from watchbill.fleet.folder.record import Recorder, Tail
from watchbill.fleet.folder.results import End, Result, ResultLog, ResultReader, end_of
from watchbill.fleet.folder.slips import Headline, Slip, headline_of, slip_name
from watchbill.fleet.folder.values import Fields, encode, fields_of
from watchbill.fleet.folder.work import Work
from watchbill.fleet.matching.abilities import Ability, Need
from watchbill.fleet.matching.policy import Crowd, Lineup, judge, window_of
from watchbill.fleet.state.entries import (
    Accept,
    Approve,
    Cancel,
    Cause,
    Deny,
    Ended,
    Entry,
    Epoch,
    Expand,
    Fail,
    Hold,
    Issue,
    Items,
    Lost,
    Names,
    Open,
    Revoke,
    Spec,
    Tasks,
    decode,
    encode_entry,
)  # fmt: skip
from watchbill.fleet.state.ledger import NEXT, Ledger, Phase, TaskState
from watchbill.plans.graph import Node
from watchbill.plans.summary import Outcome
from watchbill.plans.task import Place, Sandbox, TaskClass

DAY_MS = 86_400_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    places.make_root(tmp_path)
    return tmp_path


# ------------------------------------------------------------------ what it may import

#: What starts processes, or asks a daemon, runs on the machines with the cards.
ON_THE_RIG = (
    *(
        f"agent.{name}"
        for name in (
            "loop",
            "claimed_ahead",
            "process",
            "work",
            "preparing",
            "concluding",
            "board_client",
            "shared_folder",
            "host",
            "answers",
            "model_work",
        )
    ),
    *(f"door.{name}" for name in ("arrivals", "caller", "service")),
    "command_lines",
)


def test_the_fleet_needs_only_the_standard_library() -> None:
    """FLEET-13: the manager may be a Raspberry Pi without compiled packages."""
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        top, _, rest = name.partition('.')\n"
        "        own = rest.partition('.')[0]\n"
        "        basic = ('', 'errors', 'units', 'names', 'limits', 'quoting', 'suggest', 'toml', 'files')\n"
        "        allowed = own in (*basic, 'plans', 'fleet')\n"
        "        if not (allowed if top == 'watchbill' else top in sys.stdlib_module_names):\n"
        "            raise ImportError('refused: ' + name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import pkgutil, importlib, watchbill.fleet\n"
        "for module in pkgutil.walk_packages(watchbill.fleet.__path__, 'watchbill.fleet.'):\n"
        f"    if module.name.removeprefix('watchbill.fleet.') not in {ON_THE_RIG}:\n"
        "        importlib.import_module(module.name)\n"
        "print(len([name for name in sys.modules if name.startswith('watchbill.fleet.')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 50


# ------------------------------------------------------------------ slips

NAMES = st.text(min_size=1, max_size=300)


HEADLINES = st.builds(
    Headline, st.integers(1, 5), st.integers(0, 10**10 - 1), st.sampled_from(TaskClass), st.integers(0, 2**20),
    st.integers(1, 10**6), st.sampled_from(["", "gpu-1", "a" * limits.AGENT_NAME_CHARS_MAX]),
)  # fmt: skip


@given(HEADLINES, NAMES, NAMES, NAMES)
def test_a_slip_tells_by_its_name_who_may_take_it(
    headline: Headline, model: str, batch: str, task: str
) -> None:
    name = slip_name(headline, model=model, batch=batch, task=task)
    assert headline_of(name) == headline
    assert len(name.encode()) <= fleet_limits.SLIP_NAME_BYTES_MAX
    assert "/" not in name and not name.startswith(".")


def test_sorted_by_name_is_sorted_by_order() -> None:
    def name(priority: int, sequence: int) -> str:
        headline = Headline(priority, sequence, TaskClass.CPU, 0, 1, "")
        return slip_name(headline, model="", batch="b", task="t")

    assert sorted([name(3, 10), name(3, 9), name(1, 100)]) == [name(1, 100), name(3, 9), name(3, 10)]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff", b"[" * 100_000])
def test_a_slip_that_a_power_cut_or_a_person_spoiled_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is for people
        Slip.decode(content)


def test_a_slip_says_the_same_after_a_journey() -> None:
    slip = Slip(
        "t", "b", "p", 2, 7, 1024, ("gpu-1",), {"A": "x"}, ('{"id":1.10}',), Work(command="echo {ITEM.id}")
    )
    assert Slip.decode(slip.encode()) == slip


#: A slip as version 1 has written it from the beginning.
WRITTEN_SLIP = (
    b'{"format": 1, "task": "t", "batch": "b", "plan": "p", "attempt": 2, "epoch": 7, "vram_mb": 0, "avoid": [], '
    b'"inputs": {}, "items": [], "approved": "", "type": "shell", "class": "cpu", "command": "echo {A}", '
    b'"timeout_ms": 5000, "requires": ["a"], "produces": ["b*"], "env": {"C": "d"}, "soft_stop": true, '
    b'"sandbox": "light"}\n'
)


def test_a_slip_of_an_earlier_version_is_read_and_written_byte_for_byte() -> None:
    slip = Slip.decode(WRITTEN_SLIP)
    assert slip.work == Work(
        command="echo {A}", timeout_ms=5000, requires=("a",), produces=("b*",), env={"C": "d"}, soft_stop=True,
        sandbox=Sandbox.LIGHT,
    )  # fmt: skip
    assert slip.encode() == WRITTEN_SLIP


def test_work_keeps_what_it_does_not_understand_and_drops_what_is_of_another_kind() -> None:
    """R53: a coordinator hands on the keys of a later version; a value of a wrong kind counts as absent."""
    given = {"type": "shell", "command": 3, "env": {"A": 1, "B": "b"}, "timeout_ms": -5, "colour": ["red"]}
    found = Work.of(Fields(given))
    assert (found.command, dict(found.env), found.timeout_ms) == ("", {"A": "", "B": "b"}, 0)
    assert found.fields()["colour"] == ["red"] and found.unknown is None


def test_a_report_of_any_version_is_read_and_its_unknown_readings_are_kept() -> None:
    """FLEET-06, R53"""
    given: dict[str, object] = {
        "name": "gpu-1", "state": "hot", "cpu_slots": "many", "constraints": ["hot", 3, "held"], "seq": 9,
        "hold": {"why": "failures", "left_ms": 5}, "active_tasks": [3, {"task_id": "t", "task_class": "quantum"}],
        "load_ms": {"m": 5}, "temperature_c": 81, "fan": "loud",
    }  # fmt: skip
    found = AgentReport.of(Fields(given))
    assert (found.cpu_slots, found.constraints, found.hold) == (
        None,
        ("hot", "held"),
        OnHold(HeldWhy.FAILURES, 5),
    )
    assert [(each.task, each.task_class) for each in found.tasks] == [("t", None)]
    assert found.readings == {"temperature_c": 81, "fan": "loud"}
    assert AgentReport.of(Fields(found.fields())) == found


# ------------------------------------------------------------------ records

WRITTEN = [{"n": number} for number in range(5)]


def read_is_a_beginning_of_what_was_written(root: Path) -> None:
    """A law of records, tried with damage at every byte of the second line."""
    disk = FolderDisk(root)
    path = "tasks/results/a.1.jsonl"
    recorder = Recorder(disk, path)
    recorder.commit(WRITTEN)
    content = (root / path).read_bytes()
    lines = content.split(b"\n")
    start = len(lines[0]) + 1
    for at in range(start, start + len(lines[1]) + 1):
        (root / path).write_bytes(content[:at] + b"\n\n" + content[at + 2 :])
        found = [line.whole("n") for line in Tail(disk, path).read()]
        assert found == list(range(len(found))), "a reader returned what was not the beginning"


def test_a_reader_returns_the_beginning_of_what_was_written_whatever_is_damaged(root: Path) -> None:
    read_is_a_beginning_of_what_was_written(root)


def test_a_reader_that_reads_past_the_fill_breaks_the_law(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def skip_what_is_wrong(data: bytes) -> tuple[list[bytes], int]:
        lines = (checked_log._payload(line) for line in data.split(b"\n"))
        return [line for line in lines if line is not None], len(data)

    monkeypatch.setattr(checked_log, "whole_lines", skip_what_is_wrong)
    with pytest.raises(AssertionError, match="not the beginning"):
        read_is_a_beginning_of_what_was_written(root)


def test_lives_are_numbered_and_read_in_their_order(root: Path) -> None:
    """A finished attempt is never taken for a lost one."""
    disk = FolderDisk(root)
    first = ResultLog(disk, "gpu-1")
    first.commit([Result("x", "gpu-1", 1, End.DONE, 0)])
    for _ in range(10):
        last = ResultLog(disk, "gpu-1")
    last.commit([Result("x", "gpu-1", last.life, End.LOST)])
    reader = ResultReader(disk)
    assert [(result.life, result.end) for result in reader.read()] == [(1, End.DONE), (11, End.LOST)]
    assert list(reader.read()) == []


# ------------------------------------------------------------------ entries and ledger

SPEC = Spec(
    Node("t", ("u",), (), True, False, 2), TaskClass.SCRIPT, None, 4, 2, 512, 3, True, "m", Work(command="x")
)
TEMPLATE = Spec(Node("f", (), ("g",), False, True, 1), place=Place("{BATCH_PATH}/m.json", ("a", "b")))
ENTRIES: list[Entry] = [
    Epoch(3, {1: 20, 2: 0}), Tasks((SPEC, TEMPLATE)), Open("p", {"A": "x", "B": {"below_root": "y"}}, 2),
    Items(('{"a":1.10}',)), Names("f", ("f_1",)), Expand(("f",), "00"), Issue("t", 1, "name", 5, ("gpu-1",)),
    Accept("t", 1, "gpu-1", 3, 4, is_unscored=True),
    Fail("t", 1, "a", End.TIMEOUT, 1, "tail", True, False, 10, 11, ("a",), ms=12),
    Lost("t", 1, "a", End.UNREADABLE), Revoke("t", 1, Cause.STUCK, "a"), Hold("t", Cause.LOSSES), Approve("t"),
    Hold("t", Cause.APPROVAL, "a", "why", 5), Approve("t", "x@y", "0f", 6), Deny("t", "x@y", "no", 7),
    Cancel(), Ended(Outcome.PARTIAL),
]  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_says_the_same_after_a_journey(entry: Entry) -> None:
    assert decode(fields_of(encode(encode_entry(entry)))) == entry


def opened(*names: str) -> Ledger:
    ledger = Ledger("b")
    ledger.apply(Tasks(tuple(Spec(Node(name)) for name in names)))
    ledger.apply(Open("p", {}, 3))
    return ledger


ABOUT_A_TASK = {
    Issue: Issue("t", 2, "two"), Accept: Accept("t", 1, "a"), Fail: Fail("t", 1, "a", End.FAILED),
    Lost: Lost("t", 1, "a"), Revoke: Revoke("t", 1, Cause.AGENT_DEAD), Hold: Hold("t", Cause.LOSSES),
    Approve: Approve("t"), Deny: Deny("t"),
}  # fmt: skip
WAY_TO: dict[Phase, list[Entry]] = {
    Phase.READY: [Issue("t", 1, "one"), Lost("t", 1, "a")],
    Phase.ISSUED: [Issue("t", 1, "one")],
    Phase.MANUAL: [Issue("t", 1, "one"), Hold("t", Cause.STUCK)],
    Phase.COMPLETE: [Issue("t", 1, "one"), Accept("t", 1, "a")],
    Phase.FAILED: [Issue("t", 1, "one"), Fail("t", 1, "a", End.FAILED, is_final=True)],
    Phase.CANCELLED: [Issue("t", 1, "one"), Cancel()],
}


@pytest.mark.parametrize("kind", ABOUT_A_TASK)
@pytest.mark.parametrize("phase", WAY_TO)
def test_the_table_is_what_the_ledger_does(phase: Phase, kind: type[Entry]) -> None:
    ledger = opened("t", "other")
    for entry in WAY_TO[phase]:
        ledger.apply(entry)
    assert ledger.phase("t") is phase
    if (phase, kind) in NEXT:
        ledger.apply(ABOUT_A_TASK[kind])
        assert ledger.phase("t") is NEXT[phase, kind]
    else:
        with pytest.raises(IllegalTransition):
            ledger.apply(ABOUT_A_TASK[kind])
        assert ledger.phase("t") is phase


def test_an_entry_of_another_attempt_changes_nothing() -> None:
    """FLEET-09: only the current token counts."""
    ledger = opened("t")
    for entry in (Issue("t", 1, "one"), Revoke("t", 1, Cause.AGENT_DEAD), Issue("t", 2, "two")):
        ledger.apply(entry)
    with pytest.raises(IllegalTransition):
        ledger.apply(Accept("t", 1, "a"))
    assert (ledger.phase("t"), ledger.by_token) == (Phase.ISSUED, {"two": "t"})


# ------------------------------------------------------------------ policy


def judged(
    end: End,
    state: TaskState | None = None,
    *,
    able: tuple[str, ...] = ("a", "b"),
    vram_mb_max: int = 4_000,
):
    spec = Spec(Node("t"), TaskClass.SCRIPT, vram_mb=1_000)
    crowd = Crowd(tuple(Ability(name, 1, True, False, 4_000) for name in able), vram_mb_max, 2)
    need = Need(TaskClass.SCRIPT, 1_000)
    return judge("t", state or TaskState(attempt=1), spec, Result("n", "a", 1, end), crowd, need=need)


@pytest.mark.parametrize(("failures", "delay_ms"), [(0, 10_000), (1, 60_000)])
def test_a_failed_attempt_is_put_off_longer_each_time(failures: int, delay_ms: int) -> None:
    """FLEET-08."""
    entry = judged(End.FAILED, TaskState(attempt=1, failures=failures))
    assert (entry.delay_ms, entry.is_final, entry.avoid) == (delay_ms, False, ("a",))


def test_the_third_failure_is_the_last() -> None:
    """FLEET-08: three attempts in all."""
    assert judged(End.FAILED, TaskState(attempt=9, failures=2, losses=4)).is_final


def test_the_only_agent_is_not_avoided() -> None:
    assert judged(End.FAILED, able=("a",)).avoid == ()


def test_out_of_memory_asks_for_half_as_much_again_up_to_the_largest_budget() -> None:
    assert judged(End.OUT_OF_MEMORY).vram_mb == 1_500
    assert judged(End.OUT_OF_MEMORY, vram_mb_max=1_200).vram_mb == 1_200
    assert judged(End.FAILED).vram_mb == 1_000


@pytest.mark.parametrize(
    ("able", "vram_mb_max", "delays_ms"),
    [
        (("a", "b"), 4_000, [0, 0]),  # more memory, on another card: that is another trial
        (("a",), 4_000, [10_000, 60_000]),  # the same card, and whatever fills it
        (("a", "b"), 1_000, [10_000, 60_000]),  # no agent has more
    ],
)
def test_out_of_memory_is_put_off_unless_another_agent_has_more(
    able: tuple[str, ...], vram_mb_max: int, delays_ms: list[int]
) -> None:
    """FLEET-08: three attempts on a card that others fill were over within a second."""
    found = [
        judged(
            End.OUT_OF_MEMORY,
            TaskState(attempt=1, failures=failures),
            able=able,
            vram_mb_max=vram_mb_max,
        ).delay_ms
        for failures in (0, 1)
    ]
    assert found == delays_ms


def test_out_of_memory_avoids_its_agent_only_where_another_one_has_what_comes_next() -> None:
    """FLEET-08: the next attempt asks for more than the other cards have."""
    assert judged(End.OUT_OF_MEMORY, TaskState(attempt=2, vram_mb=3_000), vram_mb_max=5_000).avoid == ()
    assert judged(End.OUT_OF_MEMORY).avoid == ("a",)


def test_what_is_nobodys_fault_is_not_counted() -> None:
    """FLEET-08: neither a loss nor a soft stop uses up an attempt."""
    assert isinstance(judged(End.LOST), Lost)
    assert isinstance(judged(End.UNREADABLE), Lost)
    assert not judged(End.SOFT_STOP).is_counted
    assert judged(End.SOFT_STOP, TaskState(soft_stops=fleet_limits.SOFT_STOPS_MAX)).is_counted


def test_a_command_that_is_not_there_is_tried_on_one_other_agent() -> None:
    first = judged(End.NOT_RUNNABLE)
    assert (first.is_final, first.avoid) == (False, ("a",))
    assert judged(End.NOT_RUNNABLE, TaskState(attempt=2, not_runnable=1)).is_final


EXIT_CODES = {
    0: End.DONE,
    1: End.FAILED,
    -9: End.FAILED,
    75: End.SOFT_STOP,
    126: End.NOT_RUNNABLE,
    127: End.NOT_RUNNABLE,
}


@pytest.mark.parametrize(("rc", "end"), EXIT_CODES.items())
def test_exit_codes(rc: int, end: End) -> None:
    assert end_of(rc) is end


def test_the_window_grows_with_the_slots_within_bounds() -> None:
    assert [window_of(Crowd(slots=slots)) for slots in (0, 4, 10, 10**6)] == [
        32,
        32,
        80,
        fleet_limits.RELEASE_MAX,
    ]


def test_a_higher_priority_goes_first_then_each_batch_in_turn() -> None:
    """PLAN-07."""
    lineup = Lineup()
    for batch, task, priority in [("x", "1", 3), ("x", "2", 3), ("x", "3", 3), ("y", "1", 3), ("z", "1", 1)]:
        lineup.add(batch, task, task_class=TaskClass.CPU, priority=priority)
    lineup.add("y", "late", task_class=TaskClass.CPU, priority=1, not_before_ms=50)
    taken = [lineup.take(TaskClass.CPU, 0) for _ in range(6)]
    assert taken == [("z", "1"), ("x", "1"), ("y", "1"), ("x", "2"), ("x", "3"), None]
    assert lineup.next_at_ms == 50
    assert lineup.take(TaskClass.CPU, 50) == ("y", "late")


# ------------------------------------------------------------------ heartbeats


def test_a_silent_agent_of_another_machine_is_dead_after_90_seconds_of_the_readers_clock() -> None:
    """FLEET-08, R15."""
    watcher, pulse = Watcher("here"), Pulse("there", 1, 1, 5)
    assert not watcher.is_dead("a", pulse, 10**12)
    assert not watcher.is_dead("a", pulse, 10**12 + 89_999)
    assert watcher.is_dead("a", pulse, 10**12 + 90_000)
    assert not watcher.is_dead("a", Pulse("there", 1, 1, 6), 10**12 + 90_001)


@pytest.mark.parametrize("written", ["1999-01-01T00:00:00", "2999-01-01T00:00:00", "", "tomorrow"])
def test_the_time_in_a_heartbeat_changes_nothing(root: Path, written: str) -> None:
    """R15, R16: a heartbeat from the future, and a clock that was set by a day, on either side."""
    disk, watcher = FolderDisk(root), Watcher("here")
    (root / "gpus/gpu_1").mkdir()
    for seq, now_ms, dead in [(1, 0, False), (1, 90_000, True), (2, 90_001, False), (2, 180_000, False)]:
        write_heartbeat(disk, "gpu-1", Heartbeat(Pulse("there", 1, 1, seq), AgentReport(updated_at=written)))
        heartbeat = read_heartbeat(disk, "gpu-1")
        assert heartbeat is not None
        assert watcher.is_dead("gpu-1", heartbeat.pulse, now_ms) is dead


def test_a_sequence_that_jumps_back_is_a_sign_of_life() -> None:
    """R15: a new life counts from the beginning."""
    watcher = Watcher("here")
    watcher.is_dead("a", Pulse("there", 1, 1, 500), 0)
    assert not watcher.is_dead("a", Pulse("there", 2, 9, 1), 90_000)


def test_a_pid_that_was_used_again_is_not_the_agent() -> None:
    """R15: a process is told by its pid, its start time and the boot."""
    pid = os.getpid()
    started = start_time(pid)
    assert started is not None
    watcher = Watcher(boot_id() or "this boot")
    here = boot_id() or "this boot"
    assert not watcher.is_dead("a", Pulse(here, pid, started, 1), 0)
    assert watcher.is_dead("a", Pulse(here, pid, started + 1, 1), 0)
    assert not kernel_says(0, 0) and not kernel_says(-1, 0)


def test_a_living_process_of_this_boot_that_hangs_is_dead_after_90_seconds_of_silence() -> None:
    """FLEET-08: its pid says nothing about what it does."""
    watcher, pulse = Watcher("here", lambda pid, started: True), Pulse("here", 1, 1, 1)
    assert [watcher.is_dead("a", pulse, now) for now in range(0, 100_000, 10_000)] == [False] * 9 + [True]
    assert not watcher.is_dead("a", Pulse("here", 1, 1, 2), 90_001)


def test_a_reader_that_was_paused_with_its_machine_counts_the_silence_anew() -> None:
    """R16: the processes beside it could not run either."""
    watcher, pulse = Watcher("here", lambda pid, started: True), Pulse("here", 1, 1, 1)
    assert not any(watcher.is_dead("a", pulse, now) for now in (0, DAY_MS, 7 * DAY_MS))
    looks = [watcher.is_dead("a", pulse, 7 * DAY_MS + now) for now in (30_000, 60_000, 89_999, 90_000)]
    assert looks == [False, False, False, True]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null"])
def test_a_heartbeat_that_cannot_be_read_is_one_that_does_not_move(root: Path, content: bytes) -> None:
    (root / "gpus/gpu_1").mkdir()
    (root / places.heartbeat_path("gpu-1")).write_bytes(content)
    assert read_heartbeat(FolderDisk(root), "gpu-1") is None
    watcher = Watcher("here")
    assert [watcher.is_dead("gpu-1", None, now) for now in (0, 89_999, 90_000)] == [False, False, True]


# ------------------------------------------------------------------ signals


def test_signals_are_read_as_people_and_the_coordinator_write_them(root: Path) -> None:
    """FLEET-07."""
    disk = FolderDisk(root)
    signals.send(disk, "gpu-1", signals.Order.ABORT, "transcribe_v1")
    (root / "signals/gpu-1.kill").write_text('{"task_id": "embed"}')
    (root / "signals/gpu-1.stop").touch()
    (root / "signals/gpu-1.nonsense").touch()
    (root / "signals/gpu-10.stop").touch()
    (root / "signals/gpu-2.abort").write_text("transcribe_v2\n")
    (root / "signals/gpu-2.kill").write_text('{"task_id": "emb')
    found = signals.pending(disk, "gpu-1")
    assert [(each.order.value, each.task) for each in found] == [
        ("abort", "transcribe_v1"), ("kill", "embed"), ("stop", ""),
    ]  # fmt: skip
    for each in found:
        signals.obeyed(disk, each)
    others = signals.pending(disk, "gpu-2")
    assert [(each.task, each.is_garbled) for each in others] == [("transcribe_v2", False), ("", True)]
    assert dict(signals.strays(disk, ["gpu-1", "gpu-2"])) == {
        "gpu-1.nonsense": signals.Stray.NO_SIGNAL, "gpu-10.stop": signals.Stray.NO_AGENT,
    }  # fmt: skip
    assert len(os.listdir(root / "signals")) == 4


# ------------------------------------------------------------------ places


def test_an_empty_folder_is_no_fleet(tmp_path: Path) -> None:
    """An unmounted mount point is an empty folder: nothing is made in it."""
    with pytest.raises(OursError, match=r"has no fleet\.json"):
        places.check_root(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_root_keeps_its_id_and_a_newer_one_is_refused(root: Path) -> None:
    known = places.check_root(root)
    places.make_root(root)
    assert places.check_root(root) == known != ""
    assert places.probe(root).fault is None
    (root / places.MARKER).write_text('{"format": 2}')
    with pytest.raises(OursError, match="format 2"):
        places.check_root(root)


def test_paths_travel_relative_to_the_root() -> None:
    """FLEET-13: every machine may mount the folder elsewhere."""
    here, there = PurePosixPath("/mnt/shared"), PurePosixPath("/srv/fleet")
    stored = places.to_shared(here, here / "plans/p/x.json")
    assert places.from_shared(there, stored) == there / "plans/p/x.json"
    for wrong in ("/etc/passwd", "../x", "a/../../x", "a\0b"):
        with pytest.raises(OursError):
            places.from_shared(there, wrong)
    with pytest.raises(OursError):
        places.to_shared(here, PurePosixPath("/mnt/other"))


# ------------------------------------------------------------------ the board on both disks


def test_a_claim_whose_reply_was_lost_is_still_a_claim() -> None:
    class LosesReplies(Steps):
        def move(self, source: str, target: str) -> None:
            super().move(source, target)
            raise FileNotFoundError(source)

    disk = MemoryDisk()
    slip = Slip("t", "b", "p", 1, 1, 0, (), {}, (), Work())
    Board(Steps(disk)).publish("n", slip)
    assert Board(LosesReplies(disk)).claim("a", "n")
    assert not Board(Steps(disk)).claim("b", "n")


def test_one_of_two_agents_gets_a_slip(root: Path) -> None:
    board = Board(FolderDisk(root))
    for agent in ("a", "b"):
        board.join(agent)
    name = slip_name(Headline(3, 1, TaskClass.CPU, 0, 1, ""), model="", batch="b", task="t")
    slip = Slip("t", "b", "p", 1, 1, 0, (), {}, (), Work())
    board.publish(name, slip)
    assert [board.claim("a", name), board.claim("b", name), board.claim("a", name)] == [True, False, True]
    assert board.read("a", name) == slip
    board.give_back("a", name)
    assert (board.offered(), board.held_by("a")) == ([name], [])
    assert board.put_away(name, places.EXPIRED) and not board.put_away(name, places.EXPIRED)
