"""Decides which certificates the webhook should have, from the present ones and the time. Pure functions.

An *authority* is a certificate that signs the served certificate. A certificate is served only when every caller trusts
its authority already. So an authority is replaced in three steps, each in a separate run:

1. The new authority is published next to the old one (``trusted``).
2. After the time ``SETTLE`` the new authority issues the certificate that is served.
3. The old authority is removed when it has expired.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE: Final = datetime.timedelta(days=365)
CERTIFICATE_LIFE: Final = datetime.timedelta(days=30)
RENEW_AFTER: Final = 2 / 3  # of a life
SETTLE: Final = datetime.timedelta(minutes=5)  # far longer than a replica's run, or an API server's cache, may lag
BACKDATE: Final = datetime.timedelta(minutes=5)  # a caller's clock may be behind

_KEYS: Final = {"authorities": "ca.crt", "authority_key": "ca.key", "certificate": "tls.crt", "key": "tls.key"}


class Bundle(msgspec.Struct, frozen=True):
    """The certificates and keys that all replicas share, as PEM text.

    Attributes:
        authorities: The certificates of all authorities that callers must trust, the newest last.
        authority_key: The newest authority's key.
        certificate: The certificate to serve.
        key: The certificate's key.
    """

    authorities: str
    authority_key: str
    certificate: str
    key: str


class _Parsed(NamedTuple):
    authorities: list[x509.Certificate]
    authority_key: ec.EllipticCurvePrivateKey | None
    certificate: x509.Certificate | None


def renew(bundle: Bundle | None, *, now: datetime.datetime, hosts: Sequence[str]) -> Bundle:
    """Return the bundle of certificates to use from now on; the present one if nothing must be renewed.

    Args:
        bundle: The present bundle; None without one. Its missing, damaged and expired parts are replaced at once.
        now: The time, with a zone.
        hosts: DNS names of the certificate.
    """
    parsed = _parse(bundle)  # without the parts that are damaged, or whose key is another's

    # 1. The authorities that are still valid, and a new one if the newest must be replaced.
    authorities = [a for a in parsed.authorities if a.not_valid_after_utc > now]
    authority_key = parsed.authority_key
    newest = authorities[-1] if authorities else None  # new authorities are appended
    if newest is None or authority_key is None or not _have_same_key(newest, authority_key) or _is_due(newest, now):
        newest, authority_key = _new_authority(now)
        authorities.append(newest)

    # 2. The certificate. An unusable one is replaced at once; a usable one only after callers know the new authority.
    certificate, key = parsed.certificate, bundle.key if bundle is not None else ""
    is_usable = certificate is not None and _is_usable(certificate, authorities, now=now, hosts=hosts)
    is_due = certificate is None or _is_due(certificate, now) or not _is_signed_by(certificate, newest)
    # Authorities are valid from ``BACKDATE`` before their creation.
    has_settled = now >= newest.not_valid_before_utc + BACKDATE + SETTLE
    if not is_usable or (is_due and has_settled):
        certificate, private_key = _new_certificate(newest, authority_key, now=now, hosts=hosts)
        key = _key_pem(private_key)
    assert certificate is not None
    return Bundle(
        authorities="".join(_pem(authority) for authority in authorities),
        authority_key=_key_pem(authority_key),
        certificate=_pem(certificate),
        key=key,
    )


def trusted(bundle: Bundle) -> str:
    """Return the authorities' certificates for ``caBundle``, as PEM text; empty if they are damaged."""
    return "".join(_pem(authority) for authority in _parse(bundle).authorities)


def expires(bundle: Bundle) -> datetime.datetime:
    """Return when the served certificate of ``bundle`` expires."""
    return x509.load_pem_x509_certificate(bundle.certificate.encode()).not_valid_after_utc


def to_data(bundle: Bundle) -> dict[str, str]:
    """Return the ``data`` of the Secret that keeps the bundle of certificates."""
    return {key: base64.b64encode(getattr(bundle, field).encode()).decode() for field, key in _KEYS.items()}


def from_data(data: Mapping[str, str]) -> Bundle | None:
    """Return the bundle of certificates in a Secret's ``data``; None if a part is missing or not text."""
    try:
        parts = {field: base64.b64decode(data[key], validate=True) for field, key in _KEYS.items()}
        return Bundle(**{field: part.decode("ascii") for field, part in parts.items()})
    except (KeyError, ValueError, binascii.Error):
        return None


def _parse(bundle: Bundle | None) -> _Parsed:
    if bundle is None:
        return _Parsed([], None, None)
    try:
        authorities = x509.load_pem_x509_certificates(bundle.authorities.encode())
    except ValueError:
        authorities = []
    key = _load_key(bundle.authority_key)
    try:
        certificate = x509.load_pem_x509_certificate(bundle.certificate.encode())
    except ValueError:
        return _Parsed(authorities, key, None)
    certificate_key = _load_key(bundle.key)
    return _Parsed(
        authorities,
        key,
        certificate if certificate_key is not None and _have_same_key(certificate, certificate_key) else None,
    )


def _load_key(pem: str) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _have_same_key(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    return certificate.public_key() == key.public_key()


def _is_due(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return now >= certificate.not_valid_before_utc + life * RENEW_AFTER


def _is_usable(
    certificate: x509.Certificate,
    authorities: Sequence[x509.Certificate],
    *,
    now: datetime.datetime,
    hosts: Sequence[str],
) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return (
        certificate.not_valid_after_utc > now
        and names.get_values_for_type(x509.DNSName) == list(hosts)
        and any(_is_signed_by(certificate, authority) for authority in authorities)
    )


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _new_authority(now: datetime.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a new self-signed authority, valid from ``BACKDATE`` before ``now``, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Two authorities are valid during a replacement. Verifiers look an issuer up by its name, so the names differ.
    name = _name(f"gpu-topology webhook CA {serial:040x}")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - BACKDATE)  # a caller's clock may be behind
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)  # it issues no further authorities
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256()), key


def _new_certificate(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    *,
    now: datetime.datetime,
    hosts: Sequence[str],
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a new server certificate for these DNS names, issued by an authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name("gpu-topology webhook"))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)  # a caller's clock may be behind
        .not_valid_after(min(now + CERTIFICATE_LIFE, authority.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    return builder.sign(authority_key, hashes.SHA256()), key


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
