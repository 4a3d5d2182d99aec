"""Keys for mutual TLS: an authority for a federation, and for every site a key that it vouches for."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedsurf.common.checks import check_count
from fedsurf.common.files import FileError
from fedsurf.common.text import listed
from fedsurf.common.writing import lock_folder, new_folder
from fedsurf.network.engines.certificates import (
    certificate_problems,
    read_certificates,
    read_key,
)
from fedsurf.network.engines.config import (
    AUTHORITY,
    AUTHORITY_CERTIFICATE,
    CERTIFICATE,
    KEY,
    Federation,
    host_and_port,
)

try:
    from cryptography import x509
except ImportError as error:
    raise ImportError("certificates take cryptography: pip install 'fedsurf[deploy]'") from error
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
"""Days for which an authority's certificate is valid."""
SITE_DAYS = 730
"""Default days for which a site's certificate is valid."""


def make_keys(federation: Federation, folder: Path, *, days: int = SITE_DAYS) -> list[str]:
    """Make an authority, and for every site without a folder its key and certificate.

    Nothing is overwritten; a folder that does not suit its site is an error.

    Returns
    -------
    list of str
        The names of the sites whose folders are new.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from fedsurf.network.engines.config import Agent
    >>> pair = Federation("pair", (Agent("a", "10.0.0.1:7447"), Agent("b", "b.example.org:7447")))
    >>> with TemporaryDirectory() as folder:
    ...     keys = Path(folder) / "keys"
    ...     print(make_keys(pair, keys), make_keys(pair, keys))
    ...     sorted(path.name for path in (keys / "a").iterdir())
    ['a', 'b'] []
    ['authority.pem', 'certificate.pem', 'key.pem']
    """
    check_count(days, "days", most=AUTHORITY_DAYS)
    hosts = {site.name: host_and_port(site.address)[0] for site in federation.nodes}
    with lock_folder(folder):
        there = [name for name in hosts if (folder / name).exists()]
        for name in there:
            for problem in certificate_problems(folder / name, name, hosts[name]):
                raise FileError(f"{problem}; remove {folder / name} to make another")
        new = [name for name in hosts if name not in there]
        if not new:
            return []
        if not (folder / AUTHORITY).exists():
            if there:
                raise FileError(
                    f"{folder / AUTHORITY / KEY}: there is no such file, but only the authority of "
                    f"{listed(there)} can make certificates that these trust"
                )
            _make_authority(federation.name, folder / AUTHORITY)
        key, authority = _read_authority(folder / AUTHORITY)
        for name in new:
            subject = _name(federation.name, name)
            _make_site(folder / name, subject, hosts[name], key, authority, days)
        return new


def _make_authority(federation: str, folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(federation, AUTHORITY)
    builder = (
        _builder(name, name, key, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
    )
    with new_folder(folder, private=True) as temporary:
        _write(temporary, key, builder.sign(key, SHA256()))


def _read_authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = read_key(folder / KEY)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FileError(f"{folder / KEY}: is of another kind than the keys that fedsurf makes")
    return key, read_certificates(folder / CERTIFICATE)[0]


def _make_site(
    folder: Path,
    subject: x509.Name,
    host: str,
    authority_key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    days: int,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    try:
        place: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        place = x509.DNSName(host)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    days = min(days, (authority.not_valid_after_utc - datetime.now(UTC)).days)
    builder = (
        _builder(subject, authority.subject, key, authority_key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([place]), critical=False)
    )
    with new_folder(folder, private=True) as temporary:
        _write(temporary, key, builder.sign(authority_key, SHA256()))
        (temporary / AUTHORITY_CERTIFICATE).write_bytes(_pem(authority))


def _name(federation: str, name: str) -> x509.Name:
    parts = (NameOID.ORGANIZATION_NAME, federation), (NameOID.COMMON_NAME, name)
    return x509.Name([x509.NameAttribute(*part) for part in parts])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    known_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of sites differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(known_by, critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / KEY).write_bytes(private)
    (folder / CERTIFICATE).write_bytes(_pem(certificate))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
