"""Throw-away keys and certificates: who can read them, what they are good for."""

from __future__ import annotations

import datetime as dt
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from experiments.engines.certificates import Certificates, make_certificates, make_node_key


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "tls")


def shake_hands(server: Certificates, trusted: Path, host: str) -> None:
    """Have a client that trusts an authority connect to a server under a name."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(server.server, server.server_key)
    ours = ssl.create_default_context(cafile=str(trusted))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(to_client, to_server, server_hostname=host)
    answering = theirs.wrap_bio(to_server, to_client, server_side=True)
    unfinished = [client, answering]
    while unfinished:
        side = unfinished.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            unfinished.append(side)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_client_that_trusts_the_authority_believes_the_server(
    certificates: Certificates, host: str
) -> None:
    shake_hands(certificates, certificates.ca, host)


def test_under_another_name_the_server_is_not_believed(certificates: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        shake_hands(certificates, certificates.ca, "example.org")


def test_who_trusts_another_authority_does_not_believe_it(
    certificates: Certificates, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"signature failure|verify failed"):
        shake_hands(certificates, other.ca, "localhost")


def test_a_servers_certificate_makes_no_others_and_ends_soon(certificates: Certificates) -> None:
    ca, server = (
        x509.load_pem_x509_certificate(file.read_bytes())
        for file in (certificates.ca, certificates.server)
    )
    server.verify_directly_issued_by(ca)
    assert isinstance(server.public_key(), ec.EllipticCurvePublicKey)
    for certificate, is_ca in ((ca, True), (server, False)):
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
        assert constraints.value.ca == usage.value.key_cert_sign == is_ca
        lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert lasts < dt.timedelta(days=60)


def test_nobody_else_can_read_any_of_it(certificates: Certificates) -> None:
    folder = certificates.ca.parent
    make_node_key(folder, "node")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) == 5
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_the_authoritys_own_key_is_kept_nowhere(certificates: Certificates) -> None:
    ca = x509.load_pem_x509_certificate(certificates.ca.read_bytes())
    private = [f for f in certificates.ca.parent.iterdir() if b"PRIVATE" in f.read_bytes()]
    assert private == [certificates.server_key]
    server = x509.load_pem_x509_certificate(certificates.server.read_bytes())
    assert ca.public_key() != server.public_key()


def test_a_nodes_keys_are_a_pair_as_openssh_has_them(tmp_path: Path) -> None:
    first, second = (make_node_key(tmp_path, name) for name in ("first", "second"))
    private = load_ssh_private_key(first.private.read_bytes(), password=None)
    public = load_ssh_public_key(first.public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    assert public != load_ssh_public_key(second.public.read_bytes())


def test_keys_replace_none_that_are_there(tmp_path: Path) -> None:
    make_node_key(tmp_path, "node")
    with pytest.raises(FileExistsError):
        make_node_key(tmp_path, "node")
