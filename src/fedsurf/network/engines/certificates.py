"""The files of a site for mutual TLS, and what is wrong with them.

A site's folder holds `key.pem`, `certificate.pem` and `authority.pem`, whether `make_keys` or an authority
that exists made them. Needs cryptography: `pip install 'fedsurf[deploy]'`.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from fedsurf.common.files import FileError, reading
from fedsurf.common.text import listed
from fedsurf.network.engines.config import SITE_FILES

try:
    from cryptography import x509
except ImportError as error:
    raise ImportError("certificates take cryptography: pip install 'fedsurf[deploy]'") from error
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

MAX_PEM_BYTES = 2**20
"""Size of the largest file of keys or certificates."""


def certificate_problems(folder: Path, name: str, host: str) -> list[str]:
    """List what is wrong with the files of a site with this name and host, one line each."""
    key, certificate, authority = (folder / file for file in SITE_FILES)
    missing = [
        f"{folder / file}: there is no such file"
        for file in SITE_FILES
        if not (folder / file).is_file()
    ]
    if missing:
        return missing
    found = []
    mode = key.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        found.append(f"{key}: others may read this key (mode {mode:o}): chmod 600 {key}")
    try:
        return found + list(_mismatches(key, certificate, authority, name, host))
    except FileError as error:
        return [*found, str(error)]


def _mismatches(
    key: Path, certificate: Path, authority: Path, name: str, host: str
) -> Iterator[str]:
    own, *others = read_certificates(certificate)
    roots = read_certificates(authority)
    if read_key(key).public_key() != own.public_key():
        yield f"{key}: is not the key of {certificate}"
    common = [str(part.value) for part in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if common != [name]:
        yield f"{certificate}: has the common name {listed(common)}, but it must be {name!r}, as the site's"
    hosts = _hosts(own)
    if not any(_covers(pattern, host) for pattern in hosts):
        yield (
            f"{certificate}: is for {listed(hosts)} (subject alternative names), but the site's host is {host}"
        )
    now = datetime.now(UTC)
    if now > own.not_valid_after_utc:
        yield f"{certificate}: expired on {own.not_valid_after_utc:%Y-%m-%d}"
    if now < own.not_valid_before_utc:
        yield f"{certificate}: is valid from {own.not_valid_before_utc:%Y-%m-%d} on only"
    if not _serves_and_calls(own):
        yield f"{certificate}: must allow both server and client authentication (extended key usage)"
    if not any(is_issued(others[-1] if others else own, root) for root in roots):
        yield f"{certificate}: was not issued by the authority in {authority}"


def read_key(path: Path) -> PrivateKeyTypes:
    """Read a private key."""
    with reading(path, "a private key in PEM without a password", MAX_PEM_BYTES):
        return load_pem_private_key(path.read_bytes(), None)


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Read a file of one or more certificates."""
    with reading(path, "certificates in PEM", MAX_PEM_BYTES):
        return x509.load_pem_x509_certificates(path.read_bytes())


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _covers(pattern: str, host: str) -> bool:
    """Return whether a name of a certificate, perhaps with a wildcard, covers a host."""
    pattern, host = pattern.lower(), host.lower()
    wild = pattern.startswith("*.") and host.partition(".")[2] == pattern[2:]
    return wild or pattern == host


def _serves_and_calls(certificate: x509.Certificate) -> bool:
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:  # all usages
        return True
    return {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= set(usages)


def is_issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether an authority has issued a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True
