"""Signatures of answers, which neighbours hand on: who hands one on cannot change it.

A signed answer is the message, the sender's certificates (PEM), a signature by their key, and the sizes of
these two. Rows of rounds need none, as they come from the neighbour itself over TLS.
"""

import struct
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from fedsurf.network.engines.certificates import (
    MAX_PEM_BYTES,
    is_issued,
    read_certificates,
    read_key,
)
from fedsurf.network.engines.messages import RefusedError

_SIZES = struct.Struct("<II")
MAX_KNOWN = 1024
"""Certificates that are remembered as sound."""


class Signatures(Protocol):
    """Signs answers, and checks those of others."""

    def signed(self, raw: bytes) -> bytes:
        """Return a message with this process's signature."""

    def opened(self, raw: bytes) -> tuple[bytes, str]:
        """Return the message that was signed, and by whom; raise `RefusedError` if that is not sound."""


class CertificateSignatures:
    """Signatures by the key of a process, checked by the authority that all trust.

    Parameters
    ----------
    authority, certificate, key : str or Path
        The process's files for TLS, as PEM.
    """

    def __init__(self, authority: str | Path, certificate: str | Path, key: str | Path) -> None:
        self._roots = read_certificates(Path(authority))
        self._chain, self._key = Path(certificate).read_bytes(), read_key(Path(key))
        self._known: dict[bytes, tuple[PublicKeyTypes, str]] = {}

    def signed(self, raw: bytes) -> bytes:
        """Return a message with this process's certificates and its signature."""
        match self._key:
            case ec.EllipticCurvePrivateKey():
                signature = self._key.sign(raw, ec.ECDSA(SHA256()))
            case rsa.RSAPrivateKey():
                signature = self._key.sign(raw, padding.PKCS1v15(), SHA256())
            case ed25519.Ed25519PrivateKey():
                signature = self._key.sign(raw)
            case _:
                raise TypeError(
                    f"key: got a {type(self._key).__name__}, but it must be EC, RSA or Ed25519"
                )
        return raw + self._chain + signature + _SIZES.pack(len(self._chain), len(signature))

    def opened(self, raw: bytes) -> tuple[bytes, str]:
        """Return the message that was signed, and the common name of the certificate."""
        if len(raw) < _SIZES.size:
            raise RefusedError("not signed")
        chain_size, size = _SIZES.unpack_from(raw, len(raw) - _SIZES.size)
        end = len(raw) - _SIZES.size - size
        start = end - chain_size
        if start < 0 or chain_size > MAX_PEM_BYTES:
            raise RefusedError("not signed")
        message, chain, signature = raw[:start], raw[start:end], raw[end : -_SIZES.size]
        if chain not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[chain] = self._checked(chain)
        key, name = self._known[chain]
        try:
            match key:
                case ec.EllipticCurvePublicKey():
                    key.verify(signature, message, ec.ECDSA(SHA256()))
                case rsa.RSAPublicKey():
                    key.verify(signature, message, padding.PKCS1v15(), SHA256())
                case ed25519.Ed25519PublicKey():
                    key.verify(signature, message)
                case _:
                    raise RefusedError("signed with a key of an unknown kind")
        except InvalidSignature as error:
            raise RefusedError("a forged signature") from error
        return message, name

    def _checked(self, chain: bytes) -> tuple[PublicKeyTypes, str]:
        """Return the key and the name of a certificate that the authority, or who it trusts, has issued."""
        try:
            own, *others = x509.load_pem_x509_certificates(chain)
            names = own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            authorities = all(_is_authority(certificate) for certificate in others)
        except ValueError as error:
            raise RefusedError("signed with something else than a certificate") from error
        now = datetime.now(UTC)
        every = [own, *others]
        issued = all(is_issued(*pair) for pair in pairwise(every))
        trusted = any(is_issued(every[-1], root) for root in self._roots)
        valid = all(c.not_valid_before_utc <= now <= c.not_valid_after_utc for c in every)
        if not (authorities and issued and trusted and valid and len(names) == 1):
            raise RefusedError("signed with a certificate that is not trusted")
        return own.public_key(), str(names[0].value)


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return found.value.ca
