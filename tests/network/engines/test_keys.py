"""Certificates as they are on the disk, and a connection of Zenoh with them."""

import ipaddress
import json
import os
import socket
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import zenoh
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store
from federations import HOSTS, a_federation

from fedsurf.common.files import FileError
from fedsurf.network.engines.certificates import certificate_problems
from fedsurf.network.engines.config import Server, host_and_port
from fedsurf.network.engines.keys import make_keys
from fedsurf.network.engines.problems import problems_here

FILES = ["authority.pem", "certificate.pem", "key.pem"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Make certificates that tests only read."""
    folder = tmp_path_factory.mktemp("made") / "keys"
    make_keys(a_federation(), folder)
    return folder


@pytest.fixture
def own_keys(tmp_path):
    """Make certificates that a test may change."""
    make_keys(a_federation(HOSTS[:1]), tmp_path / "keys")
    return tmp_path / "keys"


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def extension(read, kind):
    return read.extensions.get_extension_for_class(kind)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*.pem")}


def test_the_authority_may_sign_sites_and_nothing_else(keys):
    authority = certificate(keys / "authority" / "certificate.pem")
    assert authority.subject == authority.issuer
    authority.verify_directly_issued_by(authority)
    basic, usage = (extension(authority, kind) for kind in (x509.BasicConstraints, x509.KeyUsage))
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert isinstance(authority.public_key().curve, ec.SECP256R1)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_site_has_its_own_key_a_certificate_and_the_authority(keys, number):
    folder = keys / f"clinic-{number}"
    host, _ = host_and_port(HOSTS[number - 1])
    assert sorted(path.name for path in folder.iterdir()) == FILES
    own, authority = certificate(folder / "certificate.pem"), certificate(folder / "authority.pem")
    assert authority == certificate(keys / "authority" / "certificate.pem")
    own.verify_directly_issued_by(authority)
    (name,) = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == folder.name
    key = load_pem_private_key((folder / "key.pem").read_bytes(), None)
    assert key.public_key() == own.public_key()
    assert isinstance(key.curve, ec.SECP256R1)
    assert not extension(own, x509.BasicConstraints).value.ca
    usages = extension(own, x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    days = (own.not_valid_after_utc - datetime.now(UTC)).days
    assert 728 <= days <= 730
    try:
        place = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        place = x509.DNSName(host)
    assert list(extension(own, x509.SubjectAlternativeName).value) == [place]
    policy = PolicyBuilder().store(Store([authority]))
    policy.build_server_verifier(place).verify(own, [])
    policy.build_client_verifier().verify(own, [])


def test_keys_are_all_different_and_only_the_users(keys):
    private = list(keys.rglob("key.pem"))
    assert len({path.read_bytes() for path in private}) == len(private) == 5
    for path in keys.rglob("*"):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600)


def test_an_umask_that_opens_files_to_all_does_not_open_keys(tmp_path):
    before = os.umask(0)
    try:
        make_keys(a_federation(HOSTS[:1]), tmp_path / "keys")
    finally:
        os.umask(before)
    path = tmp_path / "keys" / "clinic-1" / "key.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_site_that_joins_later_keeps_the_others(own_keys):
    before = contents(own_keys)
    more = replace(a_federation(HOSTS[:2]), graph=None, server=Server("10.0.0.1:1", "hub"))
    assert make_keys(more, own_keys) == ["hub", "clinic-2"]
    after = contents(own_keys)
    assert {path: after[path] for path in before} == before
    assert (
        problems_here(replace(more, security=replace(more.security, certificates=own_keys))) == []
    )
    assert make_keys(more, own_keys) == []
    assert contents(own_keys) == after


def test_a_folder_of_another_address_is_refused_and_kept(own_keys):
    before = contents(own_keys)
    moved = a_federation(["10.0.0.1:17401"])
    with pytest.raises(
        FileError, match=r"certificate.pem: is for 127\.0\.0\.1 .*remove .*clinic-1"
    ):
        make_keys(moved, own_keys)
    assert contents(own_keys) == before


def test_without_the_authority_no_site_is_added(own_keys):
    for path in (own_keys / "authority").iterdir():
        path.unlink()
    (own_keys / "authority").rmdir()
    with pytest.raises(FileError, match="only the authority of clinic-1 can make"):
        make_keys(a_federation(HOSTS[:2]), own_keys)
    assert not (own_keys / "clinic-2").exists()


def test_a_site_is_not_valid_for_longer_than_the_authority(tmp_path):
    make_keys(a_federation(HOSTS[:1]), tmp_path, days=3650)
    own, authority = (
        certificate(tmp_path / "clinic-1" / f"{n}.pem") for n in ("certificate", "authority")
    )
    assert own.not_valid_after_utc <= authority.not_valid_after_utc
    with pytest.raises(ValueError, match="days: got 4000, but it must be between 1 and 3650"):
        make_keys(a_federation(HOSTS[:2]), tmp_path, days=4000)


def test_certificates_that_are_sound_have_no_problems(keys):
    for number, address in enumerate(HOSTS, 1):
        name, (host, _) = f"clinic-{number}", host_and_port(address)
        assert certificate_problems(keys / name, name, host) == []


def test_missing_files_and_open_keys_are_lines(own_keys):
    federation = a_federation(HOSTS[:2])
    federation = replace(federation, security=replace(federation.security, certificates=own_keys))
    (own_keys / "clinic-1" / "key.pem").chmod(0o644)
    found = problems_here(federation)
    assert found[0].startswith(f"{own_keys}/clinic-1/key.pem: others may read this key (mode 644)")
    assert found[1:] == [
        f"{own_keys}/clinic-2/{name}.pem: there is no such file"
        for name in ("key", "certificate", "authority")
    ]
    assert problems_here(federation, ["clinic-1"]) == found[:1]


def test_files_that_do_not_belong_together_are_lines(own_keys, keys):
    folder = own_keys / "clinic-1"
    (folder / "key.pem").write_bytes((keys / "clinic-1" / "key.pem").read_bytes())
    (folder / "authority.pem").write_bytes((keys / "clinic-1" / "authority.pem").read_bytes())
    found = certificate_problems(folder, "clinic-2", "localhost")
    assert [line.partition(": ")[2].partition(",")[0] for line in found] == [
        f"is not the key of {folder}/certificate.pem",
        "has the common name clinic-1",
        "is for 127.0.0.1 (subject alternative names)",
        f"was not issued by the authority in {folder}/authority.pem",
    ]
    (folder / "key.pem").write_text("no key")
    (line,) = certificate_problems(folder, "clinic-1", "127.0.0.1")
    assert "not a private key in PEM without a password" in line


def issue(folder, *, usages=("SERVER_AUTH", "CLIENT_AUTH"), start=-1, end=9):
    """Issue a certificate as another authority might: RSA, an intermediate authority, a wildcard."""
    root, middle, own = (rsa.generate_private_key(65537, 2048) for _ in range(3))
    now = datetime.now(UTC)

    def build(subject, issuer, key):
        names = ([x509.NameAttribute(NameOID.COMMON_NAME, name)] for name in (issuer, subject))
        return (
            x509.CertificateBuilder(*map(x509.Name, names), key.public_key(), 7)
            .not_valid_before(now + timedelta(days=start))
            .not_valid_after(now + timedelta(days=end))
        )

    wildcard = x509.SubjectAlternativeName([x509.DNSName("*.example.org")])
    site = build("clinic-4", "middle", own).add_extension(wildcard, critical=False)
    if usages:
        allowed = x509.ExtendedKeyUsage([getattr(ExtendedKeyUsageOID, name) for name in usages])
        site = site.add_extension(allowed, critical=False)
    chain = [site.sign(middle, SHA256()), build("middle", "root", middle).sign(root, SHA256())]
    top = build("root", "root", root).sign(root, SHA256())
    folder.mkdir()
    (folder / "certificate.pem").write_bytes(b"".join(c.public_bytes(Encoding.PEM) for c in chain))
    (folder / "authority.pem").write_bytes(top.public_bytes(Encoding.PEM))
    private = own.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (folder / "key.pem").write_bytes(private)
    (folder / "key.pem").chmod(0o600)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, None),
        ({"usages": ()}, None),
        ({"usages": ["SERVER_AUTH"]}, "must allow both server and client authentication"),
        ({"start": -9, "end": -1}, "expired on "),
        ({"start": 1}, "is valid from "),
    ],
)
def test_certificates_of_another_authority(tmp_path, options, line):
    issue(tmp_path / "site", **options)
    found = certificate_problems(tmp_path / "site", "clinic-4", "clinic.example.org")
    assert [each.partition("certificate.pem: ")[2][: len(line or "")] for each in found] == (
        [line] if line else []
    )


def peer(keys, name, own, other=None):
    """Open a Zenoh session with mutual TLS."""
    folder, config = keys / name, zenoh.Config()
    key, own_certificate = f"{folder}/key.pem", f"{folder}/certificate.pem"
    settings = {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "listen/endpoints": [f"tls/{own}"],
        "connect/endpoints": [f"tls/{other}"] if other else [],
        "connect/exit_on_failure": False,
        "connect/timeout_ms": 0,
        "transport/link/tls": {
            "root_ca_certificate": f"{folder}/authority.pem",
            "enable_mtls": True,
            "listen_private_key": key,
            "listen_certificate": own_certificate,
            "connect_private_key": key,
            "connect_certificate": own_certificate,
            "verify_name_on_connect": True,
        },
    }
    for setting, value in settings.items():
        config.insert_json5(setting, json.dumps(value))
    return closing(zenoh.open(config))


def free_port():
    with closing(socket.socket()) as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_zenoh_connects_two_sites_and_no_foreign_one(tmp_path, host):
    addresses = [f"{host}:{free_port()}" for _ in range(2)]
    for name in ("ours", "theirs"):
        make_keys(a_federation(addresses), tmp_path / name)
    with peer(tmp_path / "ours", "clinic-1", addresses[0]) as first:
        for name, expected in (("theirs", 0), ("ours", 1)):
            with peer(tmp_path / name, "clinic-2", addresses[1], addresses[0]):
                end = time.monotonic() + (5 if expected else 0.5)
                while len(first.info.peers_zid()) < 1 and time.monotonic() < end:
                    time.sleep(0.01)
                assert len(first.info.peers_zid()) == expected
