"""The state root: where it is, who may look into it, and whose it is."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from watchbill.errors import ConfigError
from watchbill.files.host import boot_id, start_time
from watchbill.root import LAYOUT_VERSION, DaemonRecord, Root, find_root


def test_the_nearest_word_about_the_root_wins(tmp_path):
    """design 9: --root, else $WATCHBILL_HOME, else ~/.local/share/watchbill."""
    environment = {"WATCHBILL_HOME": str(tmp_path / "env")}
    assert find_root(tmp_path / "chosen", environment).path == tmp_path / "chosen"
    assert find_root(None, environment).path == tmp_path / "env"
    assert find_root(None, {}).path == Path.home() / ".local/share/watchbill"


def test_a_relative_root_stays_the_same_when_the_folder_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = find_root(Path("here/../there"))
    monkeypatch.chdir("/")
    assert root.path == tmp_path / "there"


def test_a_new_root_belongs_to_its_owner_alone(tmp_path):
    """pitfalls: ROOT 0700."""
    root = Root(tmp_path / "deep" / "root")
    before = os.umask(0)
    try:
        root.create()
    finally:
        os.umask(before)
    for folder in (root.path, root.run, root.logs, root.models):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    root.create()  # and again, without harm


def test_a_root_that_cannot_be_is_refused_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/root.*--root"):
        Root(tmp_path / "file" / "root").create()


def test_a_root_of_a_newer_watchbill_is_refused(tmp_path):
    """pitfalls: ROOT/VERSION, newer refused; nothing is touched."""
    root = Root(tmp_path)
    root.version_file.write_text(f"{LAYOUT_VERSION + 1}\n")
    with pytest.raises(ConfigError, match="newer Watchbill"):
        root.settle_version()
    assert root.version_file.read_text() == f"{LAYOUT_VERSION + 1}\n"


def test_an_older_root_is_brought_up_to_date_once(tmp_path):
    """pitfalls: ROOT/VERSION, older migrated."""
    root = Root(tmp_path)
    assert root.settle_version() == 0
    assert root.version_file.read_text() == f"{LAYOUT_VERSION}\n"
    assert root.settle_version() == LAYOUT_VERSION


def test_a_version_that_is_no_number_is_an_error_that_names_the_file(tmp_path):
    root = Root(tmp_path)
    root.version_file.write_text("one")
    with pytest.raises(ConfigError, match="VERSION"):
        root.settle_version()


def test_a_daemon_finds_its_own_record_and_takes_it_away(tmp_path):
    root = Root(tmp_path)
    root.create()
    assert root.read_daemon() is None
    written = root.write_daemon("http://127.0.0.1:1")
    assert root.read_daemon() == written
    assert written.pid == os.getpid()
    assert written.is_alive()
    assert stat.S_IMODE(root.daemon_file.stat().st_mode) == 0o600
    assert os.listdir(root.run) == ["daemon.json"]
    root.forget_daemon()
    root.forget_daemon()
    assert root.read_daemon() is None


def test_the_record_in_a_copy_of_a_root_is_none_and_a_moved_root_keeps_its_own(tmp_path):
    """design 9: commands for the copy must not reach the daemon of the original."""
    root = Root(tmp_path / "root")
    root.create()
    written = root.write_daemon("http://127.0.0.1:1")
    shutil.copytree(root.path, tmp_path / "copy")
    assert Root(tmp_path / "copy").read_daemon() is None
    (tmp_path / "link").symlink_to(root.path)
    assert Root(tmp_path / "link").read_daemon() == written
    moved = Root(root.path.rename(tmp_path / "moved"))
    assert moved.read_daemon() == written


def test_a_record_is_dead_when_pid_time_or_boot_is_another(tmp_path):
    """A pid alone proves nothing: it may have been given to somebody else since."""
    pid, started, boot = os.getpid(), start_time(os.getpid()), boot_id()
    assert started is not None
    assert DaemonRecord(pid, started, boot, "", "").is_alive()
    assert not DaemonRecord(pid, started + 1, boot, "", "").is_alive()
    assert not DaemonRecord(pid, started, "another boot", "", "").is_alive()


def test_a_process_that_ended_has_no_start_time_even_before_it_is_buried():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # end of file: it has ended, or is about to
    child.stdout.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert start_time(child.pid) is None
    child.wait()
    assert start_time(child.pid) is None


def test_a_root_of_another_user_is_refused_with_what_to_do(tmp_path):
    """design 9: not an error number of a file that nobody has heard of."""
    root = Root(tmp_path / "root")
    root.create()
    root.write_daemon("http://127.0.0.1:1")
    root.run.chmod(0)
    before = os.geteuid()
    os.seteuid(before or 65_534)  # the administrator may read everything
    try:
        with pytest.raises(
            ConfigError, match="belongs to another user; name the daemon's address with --url"
        ):
            root.read_daemon()
    finally:
        os.seteuid(before)
        root.run.chmod(0o700)


def test_a_file_in_the_place_of_a_root_is_called_no_folder(tmp_path):
    """design 9: "File exists" would be no news."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file: is not a folder; name another with --root"):
        Root(tmp_path / "file").create()
