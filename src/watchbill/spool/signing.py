"""Signed events: Ed25519, the signature beside the event and never inside it.

A signature is over the event's exact bytes, with a prefix that keeps it from being valid for anything else.
It is stored in `queue-signatures/<stem>.sig.json` as `{"key", "signature"}` and stays there while the event
moves. `key` is the fingerprint of the public key. Needs the extra `watchbill[sign]`, imported on first use.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchbill.errors import ConfigError
from watchbill.files.atomic import create_file, write_file_durable
from watchbill.files.given import read_given
from watchbill.packages import how_to_install
from watchbill.spool.backend import AnySpool
from watchbill.spool.limits import KEY_BYTES_MAX

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["KeySigner", "KeyVerifier", "make_key"]

_PREFIX = b"watchbill event v1\n"


class KeySigner:
    """Signs events with a private key file (PEM). Raises ConfigError if it cannot be used."""

    def __init__(self, path: Path) -> None:
        modules = _cryptography()
        try:
            key: Any = modules.serialization.load_pem_private_key(
                read_given(path, KEY_BYTES_MAX), password=None
            )
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} is no usable private key: {_reason(error)}") from error
        if not isinstance(key, modules.ed25519.Ed25519PrivateKey):
            raise ConfigError(f"{path} is not an Ed25519 key")
        self._key: Ed25519PrivateKey = key
        self.fingerprint = _fingerprint(key.public_key())

    def sign(self, line: bytes) -> bytes:
        """Return the content of the signature file."""
        signature = base64.b64encode(self._key.sign(_PREFIX + line)).decode()
        return json.dumps({"key": self.fingerprint, "signature": signature}).encode()


class KeyVerifier:
    """Accepts events signed by one of these public keys (PEM files). Raises ConfigError for a bad file."""

    def __init__(self, paths: Iterable[Path]) -> None:
        modules = _cryptography()
        self._invalid: type[Exception] = modules.exceptions.InvalidSignature
        self._keys: dict[str, Ed25519PublicKey] = {}
        for path in paths:
            try:
                key: Any = modules.serialization.load_pem_public_key(read_given(path, KEY_BYTES_MAX))
            except (OSError, ValueError, TypeError) as error:
                raise ConfigError(f"{path} is no usable public key: {_reason(error)}") from error
            if not isinstance(key, modules.ed25519.Ed25519PublicKey):
                raise ConfigError(f"{path} is not an Ed25519 key")
            self._keys[_fingerprint(key)] = key

    def refuse(self, spool: AnySpool, name: str, content: bytes) -> str | None:
        """Return why the signature beside this event is not accepted, or None."""
        found = spool.signature_of(name)
        if found is None:
            return "signature: none beside the event"
        try:
            table: Any = json.loads(found)
            key = self._keys.get(str(table["key"]))
            signature = base64.b64decode(str(table["signature"]), validate=True)
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
            return "signature: unreadable"
        if key is None:
            return "signature: by an unknown key"
        try:
            key.verify(signature, _PREFIX + content)
        except self._invalid:
            return "signature: does not fit the event"
        return None


def make_key(private: Path, public: Path) -> str:
    """Make a new key pair and return its fingerprint. The private file is readable by its owner only."""
    modules = _cryptography()
    key: Ed25519PrivateKey = modules.ed25519.Ed25519PrivateKey.generate()
    serialization = modules.serialization
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    create_file(private, secret)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    write_file_durable(public, key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return _fingerprint(key.public_key())


def _fingerprint(key: "Ed25519PublicKey") -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:32]


class _Modules:
    def __init__(self) -> None:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

        self.exceptions: Any = exceptions
        self.serialization: Any = serialization
        self.ed25519: Any = ed25519


def _reason(error: OSError | ValueError | TypeError) -> str:
    """Why a key cannot be read, without the name of its file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _cryptography() -> _Modules:
    try:
        return _Modules()
    except ImportError as error:
        raise ConfigError(f"signed events need a package: {how_to_install('sign')}") from error
