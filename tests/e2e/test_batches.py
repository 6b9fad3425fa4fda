"""A batch over two models that do not fit together, through a daemon that is killed again and again, beside chat.

Everything is seen from outside: the answers over HTTP, the waits in the headers of chat, and loads and questions in a
ledger that the engines write.
"""

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from e2e.place import Daemon, Place, scripted
from support.eventually import wait_until
from support.power_cut import Disk, loop_disk

#: Two places: the permanent one has the first, so that `left` and `right` take turns in the second.
CONFIG = '[devices.ram]\nreserve = "100MB"\nmax_resident = 2\n'
QUICK = 'load = "0.2s", service = "0.02s", tokens = 2'
MODELS = (
    scripted("talker", QUICK, "permanent = true"),
    scripted("left", QUICK, "concurrency = 4"),
    scripted("right", QUICK, "concurrency = 4"),
)
BOUNDARY = "a-line-of-json-has-no-such-text"
CHAT_PAUSE_S = 0.25
#: Lines under way, and answers that were not yet written down, when a daemon ends.
AGAIN_MAX = 64


def question(number: int, model: str) -> dict[str, Any]:
    body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": f"{number}"}]}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def submit(daemon: Daemon, lines: list[dict[str, Any]]) -> str:
    """Uploads the lines and makes a batch of them."""
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    form = head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
    with daemon.connect() as connection:
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        connection.request("POST", "/v1/files", form, headers)
        reply = connection.getresponse()
        told = json.loads(reply.read())
        assert reply.status == 200, told
    asked = {"input_file_id": told["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    status, _, made = daemon.ask("/v1/batches", asked)
    assert status == 200, made
    return json.loads(made)["id"]


def batch_of(daemon: Daemon, id: str) -> dict[str, Any]:
    return json.loads(daemon.ask(f"/v1/batches/{id}")[2])


def answered(daemon: Daemon, id: str) -> int:
    counts = batch_of(daemon, id)["request_counts"]
    return counts["completed"] + counts["failed"]


class Chatting:
    """A person who chats all the time, with whichever daemon is there."""

    def __init__(self) -> None:
        self.daemon: Daemon | None = None
        self.waits_ms: list[int] = []
        self.refused: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._chat, daemon=True)
        self._thread.start()

    def _chat(self) -> None:
        while not self._stopped.wait(CHAT_PAUSE_S):
            daemon = self.daemon
            if daemon is None:
                continue
            try:
                status, headers, _ = daemon.chat("talker", 2)
            except (OSError, ValueError):  # it was killed
                continue
            if status == 200:
                self.waits_ms.append(int(headers["x-watchbill-wait-ms"]))
            elif self.daemon is daemon:
                self.refused.append(status)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(30)


ENGINE = Path(__file__).with_name("programs") / "ledger_engine.py"


def ledgered(name: str, ledger: Path, load_s: float, rules: str = "") -> str:
    """The table of a model whose engine writes down what it is asked."""
    command = f"{sys.executable} {ENGINE} ${{PORT}} {name} {ledger} {load_s}"
    return f'[models.{name}]\nengine = "process"\nmemory = "60MB"\nconcurrency = 8\ncommand = "{command}"\n{rules}\n'


def calls_and_loads(ledger: Path) -> tuple[Counter[tuple[str, str]], int]:
    """How often each model was asked each line, and how often the two were loaded. The journal may lose its last second
    in a power cut, the ledger does not."""
    told = [line.split("\t") for line in ledger.read_text().splitlines() if not line.startswith("talker")]
    loads = sum(text == "loaded" for _, text in told)
    return Counter((model, text) for model, text in told if text.isdecimal()), loads


def end_of_power(place: Place, daemon: Daemon, disk: Disk) -> None:
    """Everything that was never flushed is gone, and so are all processes."""
    disk.shut_down()
    daemon.signal(signal.SIGKILL)
    daemon.wait(10)
    wait_until(lambda: not place.leftovers(), 30)
    disk.mount_again()


def end_of_daemon(daemon: Daemon) -> None:
    daemon.signal(signal.SIGKILL)
    daemon.wait(10)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("total", "kills", "cuts"),
    [
        pytest.param(300, 2, 0, id="300-lines-2-kills"),
        pytest.param(300, 1, 1, id="300-lines-a-kill-and-a-power-cut"),
        pytest.param(10_000, 10, 1, id="10000-lines-10-kills-and-a-power-cut", marks=pytest.mark.torture),
    ],
)
def test_every_line_is_answered_once_though_the_daemon_is_killed(
    place: Place, tmp_path: Path, total: int, kills: int, cuts: int
) -> None:
    """R57, R1, P1, P2, P5: every line is in the output once, with its own answer; loads stay few; chat beside it hardly
    waits; an engine is asked again only what was under way."""
    ledger, chance = tmp_path / "ledger", random.Random(total)
    models = (ledgered(name, ledger, 0.5) for name in ("left", "right"))
    place.config.write_text(CONFIG + ledgered("talker", ledger, 0.1, "permanent = true") + "".join(models))
    lines = [question(number, chance.choice(("left", "right"))) for number in range(total)]
    ends = [False] * kills + [True] * cuts  # whether it is the power that ends
    chance.shuffle(ends)
    moments = sorted(chance.sample(range(total * 9 // 10), len(ends)))
    with contextlib.ExitStack() as closing:
        disk = closing.enter_context(loop_disk("ext4", tmp_path)) if cuts else None
        if disk is not None:
            place.move_root(disk.path / "root")
            closing.callback(place.close)  # the disk is in use until then
        daemon, chatting, before = place.up(), Chatting(), time.monotonic()
        chatting.daemon = daemon
        try:
            batch = submit(daemon, lines)
            for moment, is_power in zip(moments, ends, strict=True):
                wait_until(lambda goal=moment, daemon=daemon: answered(daemon, batch) >= goal, 600)
                time.sleep(chance.uniform(0, 0.3))  # the moment is the experiment
                told, chatting.daemon = answered(daemon, batch), None
                if is_power and disk is not None:
                    end_of_power(place, daemon, disk)
                else:
                    end_of_daemon(daemon)
                daemon = chatting.daemon = place.up()
                assert answered(daemon, batch) >= told  # what was told is not taken back
            wait_until(lambda: batch_of(daemon, batch)["status"] == "completed", 600)
        finally:
            chatting.stop()
        seconds = time.monotonic() - before
        told = batch_of(daemon, batch)
        assert told["request_counts"] == {"total": total, "completed": total, "failed": 0}
        assert told["error_file_id"] is None
        found = daemon.ask(f"/v1/files/{told['output_file_id']}/content")[2].splitlines()
        answers = [json.loads(line) for line in found]
        assert [each["custom_id"] for each in answers] == [line["custom_id"] for line in lines]
        said = [each["response"]["body"]["choices"][0]["message"]["content"] for each in answers]
        assert said == [f"{line['body']['model']} heard {number}" for number, line in enumerate(lines)]
        calls, loads = calls_and_loads(ledger)
        asked_again, waits = calls.total() - total, sorted(chatting.waits_ms)
        print(
            f"counts: lines={total} kills={kills} power_cuts={cuts} answered_once={len(answers)} "
            f"lines_per_s={total / seconds:.0f} loads={loads} asked_again={asked_again} chats={len(waits)} "
            f"chat_wait_p95_ms={waits[len(waits) * 95 // 100]} longest_chat_wait_ms={waits[-1]} "
            f"refused={len(chatting.refused)}"
        )
        wanted = {(line["body"]["model"], str(number)) for number, line in enumerate(lines)}
        assert calls.keys() == wanted  # no model was asked another one's line
        assert asked_again <= AGAIN_MAX * len(ends), asked_again
        # Each life loads the model that was left, and the other one.
        assert loads <= 2 * (len(ends) + 1) + 1, loads
        assert waits and not chatting.refused
        assert waits[-1] < 10_000, waits[-1]
        assert daemon.stop() == 0


@pytest.mark.timeout(120)
def test_chat_with_the_other_model_goes_before_a_batch(place: Place) -> None:
    """P5: a person who asks for the model that is not in memory gets it while the batch has hundreds of lines left."""
    place.config.write_text(CONFIG + "".join(MODELS))
    daemon = place.up()
    slow = 400
    batch = submit(daemon, [question(number, "left") for number in range(slow)])
    wait_until(lambda: answered(daemon, batch) > 0)
    status, headers, _ = daemon.chat("right", 2)
    assert status == 200
    assert int(headers["x-watchbill-wait-ms"]) < 30_000
    assert answered(daemon, batch) < slow
    wait_until(lambda: batch_of(daemon, batch)["status"] == "completed", 60)
    assert daemon.stop() == 0


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "batch"


def watchbill(daemon: Daemon, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "watchbill", "batch", *words, "--url", daemon.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.timeout(120)
def test_the_command_line_leads_a_batch_from_a_file_to_its_results(place: Place, tmp_path: Path) -> None:
    """LANE-09: submit, follow, list, status, results and cancel, for people and for scripts; the example works."""
    place.config.write_text(CONFIG + scripted("smollm2", QUICK))
    daemon = place.up()
    followed = watchbill(daemon, "submit", str(EXAMPLE / "questions.jsonl"), "--follow")
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout.splitlines()[-1].endswith("completed, 4 of 4 lines")
    told = watchbill(daemon, "list", "--json")
    (batch,) = json.loads(told.stdout)["data"]
    assert batch["id"] in watchbill(daemon, "list").stdout
    assert "output file: file-" in watchbill(daemon, "status", batch["id"]).stdout
    assert json.loads(watchbill(daemon, "status", batch["id"], "--json").stdout) == batch
    printed = watchbill(daemon, "results", batch["id"])
    ids = [json.loads(line)["custom_id"] for line in printed.stdout.splitlines()]
    assert ids == [f"question-{number}" for number in range(1, 5)]
    written = tmp_path / "out.jsonl"
    assert watchbill(daemon, "results", batch["id"], "-o", str(written)).returncode == 0
    assert written.read_text() == printed.stdout
    assert watchbill(daemon, "results", batch["id"], "--errors").stdout == ""
    late = watchbill(daemon, "cancel", batch["id"])
    assert late.returncode == 1 and "has ended already" in late.stderr
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(json.dumps(question(1, "smollm2")) + "\n{oops\n")
    failed = watchbill(daemon, "submit", str(wrong), "--follow", "--json")
    assert failed.returncode == 1 and json.loads(failed.stdout)["errors"]["data"][0]["line"] == 2
    unusable = json.loads(failed.stdout)["id"]
    assert "line 2: the line is not JSON" in watchbill(daemon, "status", unusable).stdout
    assert "line 2: the line is not JSON" in watchbill(daemon, "status", unusable, "--follow").stderr
    wrong.write_text(json.dumps(question(1, "smollm2")) + "\n" + json.dumps(question(2, "nonesuch")) + "\n")
    partly = watchbill(daemon, "submit", str(wrong), "--follow")
    assert partly.returncode == 1 and "1 of 2 lines were not answered; see: " in partly.stderr, partly
    missing = watchbill(daemon, "submit", str(tmp_path / "missing.jsonl"))
    assert missing.returncode == 2 and "cannot read" in missing.stderr
    environment = {"PATH": "/usr/bin:/bin", "WATCHBILL_URL": daemon.url, "HOME": str(tmp_path)}
    environment["WATCHBILL"] = f"{sys.executable} -m watchbill"
    ran = subprocess.run(
        [str(EXAMPLE / "ask.sh")], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert ran.returncode == 0 and len(ran.stdout.splitlines()) == 4, ran.stderr
    assert daemon.stop() == 0
