"""Certificates for `localhost` that only the test trusts: one that is its own authority, and those of a private one."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

__all__ = ["Authority", "write_certificate"]


def write_certificate(path: Path, name: str = "localhost") -> Path:
    """Writes key and certificate of a server into one PEM file; the certificate is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + certificate.public_bytes(pem))
    return path


class Authority:
    """A private authority: its own certificate is in `path`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a private authority")])
        self.path = folder / "authority.pem"
        is_authority = x509.BasicConstraints(ca=True, path_length=None)
        made = self._builder(self._name, self._key, 0).add_extension(is_authority, critical=True)
        self.path.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str = "localhost", *, expired_days: int = 0) -> Path:
        """Writes key and certificate of a server into one PEM file. The certificate ended so many days ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        named = x509.SubjectAlternativeName([x509.DNSName(name)])
        made = self._builder(subject, key, expired_days).add_extension(named, critical=False)
        pem, path = serialization.Encoding.PEM, self._folder / f"{name}-{expired_days}.pem"
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path.write_bytes(private + made.sign(self._key, hashes.SHA256()).public_bytes(pem))
        return path

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, expired_days: int
    ) -> x509.CertificateBuilder:
        ends = datetime.now(UTC) + timedelta(days=-expired_days if expired_days else 1)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(ends - timedelta(days=2))
            .not_valid_after(ends)
        )
