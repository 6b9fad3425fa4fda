"""An operator of NATS with one account: the config of its server, and credentials of users (JWT and key)."""

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys

__all__ = ["NatsOperator"]


class NatsOperator:
    """Keys that are made anew for each test."""

    def __init__(self) -> None:
        self._operator, self._account, self._system = (
            _pair(kind)
            for kind in (
                nkeys.PREFIX_BYTE_OPERATOR,
                nkeys.PREFIX_BYTE_ACCOUNT,
                nkeys.PREFIX_BYTE_ACCOUNT,
            )
        )

    def server_config(self) -> list[str]:
        """Lines that let in whoever has credentials of the account."""
        free = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        store = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
        told = {"system_account": _public(self._system)}
        operator = _signed(self._operator, self._operator, "operator", told)
        accounts = [
            (pair, _signed(self._operator, pair, "account", {"limits": {**free, "wildcards": True, **more}}))
            for pair, more in ((self._account, store), (self._system, {}))
        ]
        preload = ", ".join(f"{_public(pair)}: {token}" for pair, token in accounts)
        return [
            f"operator: {operator}", f"system_account: {_public(self._system)}", "resolver: MEMORY",
            f"resolver_preload: {{ {preload} }}",
        ]  # fmt: skip

    def credentials(self, path: Path, *, ends_s: float | None = None) -> Path:
        """Write those of a new user, which end at this time."""
        user = _pair(nkeys.PREFIX_BYTE_USER)
        unlimited = dict.fromkeys(("subs", "data", "payload"), -1)
        token = _signed(self._account, user, "user", {"pub": {}, "sub": {}, **unlimited}, ends_s=ends_s)
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{bytes(user.seed).decode()}\n------END USER NKEY SEED------\n"
        )
        return path


def _pair(kind: int) -> Any:
    return nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), kind)))


def _public(pair: Any) -> str:
    return bytes(pair.public_key).decode()


def _signed(signer: Any, about: Any, kind: str, what: dict[str, Any], ends_s: float | None = None) -> str:
    claims: dict[str, Any] = {
        "jti": os.urandom(8).hex(), "iat": int(time.time()), "iss": _public(signer), "sub": _public(about),
        "name": kind, "nats": {"type": kind, "version": 2, **what},
    }  # fmt: skip
    if ends_s is not None:
        claims["exp"] = int(ends_s)
    parts = [json.dumps(each).encode() for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)]
    text = ".".join(map(_base64, parts))
    return f"{text}.{_base64(signer.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
