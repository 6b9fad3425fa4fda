"""Signed events: beside the event, over its exact bytes, checked on drain."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchbill.errors import ConfigError
from watchbill.spool import Corpus, Drain, KeySigner, KeyVerifier, Spool, gc, make_key, reader
from watchbill.spool.inspect import State, entries

pytest.importorskip("cryptography", reason="needs the extra watchbill[sign]")


@pytest.fixture
def keys(tmp_path: Path) -> tuple[KeySigner, KeyVerifier]:
    make_key(tmp_path / "private.pem", tmp_path / "public.pem")
    return KeySigner(tmp_path / "private.pem"), KeyVerifier([tmp_path / "public.pem"])


def event(name: str) -> dict[str, object]:
    return {"id": name, "kind": "note", "ts": 1}


def test_signed_events_pass_and_others_are_poisoned(
    tmp_path: Path, keys: tuple[KeySigner, KeyVerifier]
) -> None:
    """SPOOL-11: unsigned, altered, signed by a stranger, with a broken signature file: each with its reason."""
    signer, verifier = keys
    path = tmp_path / "spool"
    make_key(tmp_path / "stranger.pem", tmp_path / "stranger.pub")
    with Spool(path, signer=signer) as spool:
        good = spool.enqueue(event("good"))
        spool.enqueue_many([event("a"), event("b")], bundle=True)
        altered = spool.enqueue(event("altered"))
        (path / "queue" / altered).write_bytes(b'{"id":"ALTERED","kind":"note","ts":1}\n')
        broken = spool.enqueue(event("broken"))
        (path / "queue-signatures" / broken.replace("~0.jsonl", ".sig.json")).write_text("{")
        assert b"signature" not in (path / "queue" / good).read_bytes()
        with Spool(path) as unsigned, Spool(path, signer=KeySigner(tmp_path / "stranger.pem")) as stranger:
            unsigned.enqueue(event("unsigned"))
            stranger.enqueue(event("stranger"))
        report = Drain(spool, Corpus(tmp_path / "corpus.jsonl"), verifier=verifier).run_once()
        assert (report.appended, report.poisoned) == (3, 4)
        assert [line.id for line in reader.read(tmp_path / "corpus.jsonl")] == ["good", "a", "b"]
        reasons = {entry.reason["reason"] for entry in entries(spool, State.POISON)}
        assert reasons == {
            "signature: does not fit the event", "signature: unreadable", "signature: none beside the event",
            "signature: by an unknown key",
        }  # fmt: skip


def test_a_signature_survives_with_its_event(
    disk: Any, child: Callable[..., Any], tmp_path: Path, keys: tuple[KeySigner, KeyVerifier]
) -> None:
    """SPOOL-11, R1: after a power cut an acknowledged signed event still verifies."""
    signer, verifier = keys
    path = disk.path / "spool"

    def work(say: Callable[[object], None]) -> None:
        spool = Spool(path, signer=signer)
        for number in range(100_000):
            say(spool.enqueue(event(str(number))))

    process = child(work)
    process.first()
    acknowledged = len([name for name in process.said() if isinstance(name, str)])
    disk.shut_down()
    process.kill()
    disk.mount_again()
    with Spool(path) as spool:
        report = Drain(spool, Corpus(tmp_path / "corpus.jsonl"), verifier=verifier).run_once()
        assert report.appended >= acknowledged
        assert report.poisoned == 0


def test_signatures_go_with_their_done_files(tmp_path: Path, keys: tuple[KeySigner, KeyVerifier]) -> None:
    """SPOOL-12: gc leaves no signature without an event."""
    path = tmp_path / "spool"
    with Spool(path, signer=keys[0]) as spool:
        spool.enqueue(event("a"))
        item = spool.lease()
        assert item is not None
        spool.done(item)
        spool.checkpoint()
        (day,) = (path / "queue-done").iterdir()
        day.rename(day.with_name("2020-01-01"))
        assert gc(spool).removed == 1
        assert list((path / "queue-signatures").iterdir()) == []


def test_keys_are_files_that_must_fit(tmp_path: Path) -> None:
    """SPOOL-11: the private one is readable by its owner only and is never overwritten."""
    make_key(tmp_path / "private.pem", tmp_path / "public.pem")
    assert os.stat(tmp_path / "private.pem").st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        make_key(tmp_path / "private.pem", tmp_path / "public.pem")
    with pytest.raises(ConfigError, match="no usable private key"):
        KeySigner(tmp_path / "public.pem")
    with pytest.raises(ConfigError, match="no usable public key"):
        KeyVerifier([tmp_path / "private.pem"])
    with pytest.raises(ConfigError, match=r"no usable public key: No such file or directory$"):
        KeyVerifier([tmp_path / "nowhere.pem"])
