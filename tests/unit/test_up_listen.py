"""`up --listen`: the address as llama-swap's users write it."""

import pytest

from watchbill import daemon
from watchbill.cli.app import WrongUse
from watchbill.cli.up import up


@pytest.mark.parametrize(
    ("written", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("[::1]:0", "::1", 0),
        ("localhost:11434", "localhost", 11434),
        (":8080", "0.0.0.0", 8080),
    ],
)
def test_listen_says_host_and_port_in_one(monkeypatch, tmp_path, written, host, port):
    """Issue 19: `--listen HOST:PORT`; without a host it is every address, as for Go's programs."""
    started = []
    monkeypatch.setenv("WATCHBILL_HOME", str(tmp_path))
    monkeypatch.setattr(daemon, "run", lambda options, screen: started.append(options) or 0)
    assert up(listen=written) == 0
    assert [(each.host, each.port) for each in started] == [(host, port)]


@pytest.mark.parametrize(
    "written", ["", "8080", "127.0.0.1", "::1:8080", "a:b", "host:", "h:123456", "h:-1", "h:٣"]
)
def test_what_is_no_address_is_refused_with_an_example(monkeypatch, tmp_path, written):
    monkeypatch.setenv("WATCHBILL_HOME", str(tmp_path))
    with pytest.raises(WrongUse, match="write HOST:PORT"):
        up(listen=written)


def test_listen_does_not_go_with_host_or_port():
    with pytest.raises(WrongUse, match="leave those out"):
        up(listen="127.0.0.1:1", port=2)
