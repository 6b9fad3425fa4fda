"""`doctor` and `logs`: what is wrong here, and what the daemon and the engines said."""

import json
import os
import stat
import subprocess

from gguf_models import GgufFiles
from watchbill.root import LAYOUT_VERSION, Root


def findings(done) -> dict[str, tuple[str, str]]:
    return {each["name"]: (each["health"], each["text"]) for each in json.loads(done.stdout)["findings"]}


def test_a_fresh_machine_is_healthy_and_told_how_to_begin(alone):
    done = alone("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    for told in ("Python 3.", "root", "disk", "memory", "config", f"{alone.hint('up')} starts one"):
        assert told in done.stdout, told
    assert not (alone.home / "root").exists()  # looking changes nothing


def test_a_running_daemon_is_asked_whether_it_is_ready(watchbill, daemon):
    assert findings(watchbill("doctor", "--json"))["daemon"][0] == "ok"
    daemon.answers[("GET", "/ready")] = (503, {"status": "the scheduler does not turn"})
    sick = watchbill("doctor", "--json")
    assert sick.returncode == 1
    assert findings(sick)["daemon"][0] == "fail"
    assert "the scheduler does not turn" in findings(sick)["daemon"][1]


def test_a_daemon_that_died_without_a_word_is_noticed(alone):
    root = Root(alone.home / "root")
    root.create()
    root.daemon_file.write_text(
        json.dumps({"pid": 2**22 - 1, "start_time": 1, "boot_id": "x", "url": "http://h:1"})
    )
    done = alone("doctor", "--json")
    assert done.returncode == 0
    assert findings(done)["daemon"][0] == "warn"


def test_a_daemon_that_was_named_is_not_taken_for_that_of_the_root(watchbill, daemon):
    """design 9: --url beats the root, and then the root's pid says nothing."""
    root = Root(watchbill.home / "root")
    root.create()
    mine = root.write_daemon("http://127.0.0.1:1")
    told = findings(watchbill("doctor", "--json"))["daemon"]
    assert told == ("ok", f"{daemon.url} is ready")
    assert str(mine.pid) not in told[1]


def test_a_root_that_others_may_enter_or_that_is_too_new_is_named(alone):
    root = Root(alone.home / "root")
    root.create()
    os.chmod(root.path, 0o755)
    assert findings(alone("doctor", "--json"))["root"][0] == "warn"
    root.version_file.write_text(f"{LAYOUT_VERSION + 1}\n")
    newer = alone("doctor", "--json")
    assert newer.returncode == 1
    assert findings(newer)["root"][0] == "fail"


def test_a_config_that_cannot_work_is_named_with_its_place(alone):
    (alone.home / "watchbill.toml").write_text('[models.a]\nengine = "llamacpp"\nsource = "gone.gguf"\n')
    missing = alone("doctor")
    assert missing.returncode == 1
    assert "gone.gguf" in missing.stdout
    (alone.home / "watchbill.toml").write_text("[modles.a]\n")
    wrong = alone("doctor", "--json")
    assert wrong.returncode == 1
    assert findings(wrong)["config"][0] == "fail"


def test_logs_shows_the_end_of_the_daemons_log(alone):
    """pitfalls: watchbill logs [MODEL] -f."""
    root = Root(alone.home / "root")
    root.create()
    root.daemon_log.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert alone("logs", "-n", "2").stdout == "line 998\nline 999\n"
    assert alone("logs").stdout.startswith("line 800\n")
    assert alone("logs", "-n", "0").stdout == ""


def test_logs_of_a_model_comes_from_its_engine(alone):
    root = Root(alone.home / "root")
    root.create()
    (root.logs / "tiny.log").write_text("llama: hello\n")
    assert alone("logs", "tiny").stdout == "llama: hello\n"


def test_a_log_that_is_not_there_is_said(alone):
    done = alone("logs", "nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no log of model nobody" in done.stderr


def test_a_log_can_be_followed_through_its_rotation(alone):
    root = Root(alone.home / "root")
    root.create()
    root.daemon_log.write_text("old\n")
    following = alone.start("logs", "-f")
    try:
        assert following.stdout.readline() == b"old\n"
        with root.daemon_log.open("a") as log:
            log.write("new\n")
        assert following.stdout.readline() == b"new\n"
        root.daemon_log.rename(root.logs / "daemon.log.1")
        root.daemon_log.write_text("after the rotation\n")
        assert following.stdout.readline() == b"after the rotation\n"
        root.daemon_log.write_text("cut\n")
        assert following.stdout.readline() == b"cut\n"
    finally:
        following.terminate()
        following.communicate()


def test_a_name_that_could_leave_the_logs_folder_is_refused(alone):
    """R49: outside text becomes a path only through `names`."""
    (alone.home / "root").mkdir()
    (alone.home / "root" / "secret.log").write_text("secret")
    done = alone("logs", "../secret")
    assert done.returncode in {1, 2}
    assert "secret\n" not in done.stdout


def test_a_root_that_cannot_be_made_is_broken(alone):
    """design 9: nothing below a file can be made, whoever asks."""
    (alone.home / "file").touch()
    done = alone("doctor", "--json", "--root", "file/root")
    assert done.returncode == 1
    assert findings(done)["root"][0] == "fail"


def test_a_log_of_a_model_that_is_not_there_names_those_that_are(alone):
    """design 9: an alias has no log of its own, and an engine's log is never on a terminal."""
    root = Root(alone.home / "root")
    root.create()
    (root.logs / "qwen.log").write_text("hello\n")
    done = alone("logs", "qwem")
    assert done.returncode == 1
    assert "there are logs of: qwen" in done.stderr
    assert "terminal" not in done.stderr


def test_without_a_config_doctor_tells_the_models_that_are_served(alone, gguf_files: GgufFiles):
    """design 9: it said that the embedded model would be fetched, which `up` does only where no other model is."""
    root = Root(alone.home / "root")
    root.create()
    root.models.mkdir(exist_ok=True)
    assert "fetches its model first" in alone("doctor").stdout
    (root.models / "one.gguf").write_bytes(gguf_files.chat("1MB").read_bytes())
    assert findings(alone("doctor", "--json"))["config"] == (
        "ok", "none; without one the model that is here is served"
    )  # fmt: skip
    (root.models / "two.gguf").write_bytes(gguf_files.chat("1MB").read_bytes())
    told = alone("doctor").stdout
    assert "none; without one the 2 models that are here are served" in told
    assert "fetches" not in told


def test_what_mends_a_root_works_when_it_is_pasted(alone, tmp_path):
    """Style 11: the hint works when it is pasted, also where the path has spaces."""
    root = Root(tmp_path / "a root")
    root.create()
    os.chmod(root.path, 0o755)
    advice = json.loads(alone("doctor", "--json", "--root", str(root.path)).stdout)["findings"]
    hint = next(each["advice"] for each in advice if each["name"] == "root")
    subprocess.run(hint, shell=True, check=True, timeout=30)
    assert stat.S_IMODE(root.path.stat().st_mode) == 0o700


def test_broken_and_unfinished_model_files_are_named(alone):
    """Issue 19: a file in the models folder that is not served is told, with what to do."""
    root = Root(alone.home / "root")
    root.create()
    root.models.mkdir(exist_ok=True)
    assert "model file" not in alone("doctor").stdout
    (root.models / "half.gguf").write_bytes(b"GGUF\x03\0\0\0")
    done = alone("doctor", "--json")
    assert done.returncode == 0
    assert findings(done)["model file"][0] == "warn"
    assert findings(done)["model file"][1].startswith("half.gguf: broken: ")
    for number in range(9):
        (root.models / f"more-{number}.gguf").write_bytes(b"<html>")
    assert findings(alone("doctor", "--json"))["model file"] == ("warn", "and 2 more")
