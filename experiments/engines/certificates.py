"""Throw-away keys and certificates: an authority, a server's certificate, and keys of nodes.

They are for one run on this machine, valid for a few days, and readable for nobody else.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CURVE = ec.SECP384R1()
# Certificates are checked when something connects, which a restarted node does late in a run.
VALID = dt.timedelta(days=30)
# Clocks of containers and their hosts may differ a little.
CLOCK_SKEW = dt.timedelta(minutes=5)
ADDRESS, HOST_NAME = "127.0.0.1", "localhost"


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of a SuperLink with TLS.

    Attributes:
        ca: the authority's certificate, which others trust.
        server: the SuperLink's own.
        server_key: its private key.
    """

    ca: Path
    server: Path
    server_key: Path

    @property
    def server_options(self) -> list[str]:
        """The options that Flower's SuperLink takes them by."""
        return [
            "--ssl-ca-certfile",
            str(self.ca),
            "--ssl-certfile",
            str(self.server),
            "--ssl-keyfile",
            str(self.server_key),
        ]


@dataclass(frozen=True, slots=True)
class NodeKey:
    """The files of a node's key pair, as OpenSSH has them."""

    private: Path
    public: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, whose own key is kept nowhere, and a certificate for the loopback host.

    Args:
        folder: made for them, with access for its owner alone.
    """
    folder.mkdir(mode=0o700)
    authority, key = ec.generate_private_key(CURVE), ec.generate_private_key(CURVE)
    issuer, subject = _name("fedio throw-away authority"), _name(HOST_NAME)
    ca = (
        _builder(subject=issuer, issuer=issuer, key=authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    hosts = [x509.DNSName(HOST_NAME), x509.IPAddress(ipaddress.ip_address(ADDRESS))]
    server = (
        _builder(subject=subject, issuer=issuer, key=key, signer=authority)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(authority, hashes.SHA384())
    )
    made = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    _write(made.ca, ca.public_bytes(Encoding.PEM))
    _write(made.server, server.public_bytes(Encoding.PEM))
    _write(
        made.server_key,
        key.private_bytes(Encoding.PEM, serialization.PrivateFormat.PKCS8, NoEncryption()),
    )
    return made


def make_node_key(folder: Path, name: str) -> NodeKey:
    """Make a key pair for a node in a folder that is there."""
    made = NodeKey(folder / name, folder / f"{name}.pub")
    key = ec.generate_private_key(CURVE)
    _write(
        made.private,
        key.private_bytes(Encoding.PEM, serialization.PrivateFormat.OpenSSH, NoEncryption()),
    )
    _write(
        made.public,
        key.public_key().public_bytes(Encoding.OpenSSH, serialization.PublicFormat.OpenSSH),
    )
    return made


def _builder(
    *,
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey | None = None,
) -> x509.CertificateBuilder:
    """Return what all certificates have in common; without a signer one signs itself."""
    now = dt.datetime.now(dt.UTC)
    public = key.public_key()
    signed_by = (signer or key).public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signed_by), critical=False
        )
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
