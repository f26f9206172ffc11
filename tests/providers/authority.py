"""Certificates for tests: a good one and three bad ones, made when needed."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """A certificate authority that signs server certificates; `path` is its own certificate, for
    clients that trust it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Tollgate test authority")
        now = datetime.now(UTC)
        certificate = _certificate(
            self._name, self._name, self._key, begins=now - DAY, ends=now + DAY
        )
        certificate = certificate.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.path = folder / "authority.pem"
        self.path.write_bytes(
            certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def trusting(self) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority."""
        return ssl.create_default_context(cafile=str(self.path))

    def server(self, kind: str) -> ssl.SSLContext:
        """Return a server's context with one certificate: `good`, `this-machine` (good for
        0.0.0.0), `expired`, `wrong-host` or `self-signed`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        begins, ends = (
            (now - 3 * DAY, now - 2 * DAY) if kind == "expired" else (now - DAY, now + DAY)
        )
        subject = _name(kind)
        issuer, signer = (subject, key) if kind == "self-signed" else (self._name, self._key)
        hosts: list[x509.GeneralName] = [x509.DNSName("elsewhere.example")]
        if kind != "wrong-host":
            address = "0.0.0.0" if kind == "this-machine" else "127.0.0.1"
            hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(address))]
        builder = _certificate(subject, issuer, key, begins=begins, ends=ends)
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        pem = self._folder / f"{kind}.pem"
        pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
