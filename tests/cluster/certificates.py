"""The cluster's certificates: one authority, and a certificate for each part."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=365)


class Authority:
    """A certificate authority that keeps its files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("gpu-topology-test", None)
        builder = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self._write("ca", certificate, self._key)

    def path(self, file: str) -> Path:
        """Returns the path of one of the files, such as `ca.crt`."""
        return self.folder / file

    def issue(self, file: str, user: str, *, group: str | None = None, hosts: Sequence[str] = ()) -> None:
        """Writes `file`.crt and `file`.key.

        Args:
            file: The files' name without ending.
            user: The common name, to the API server the user's name.
            group: The organisation, to the API server the user's group.
            hosts: Names and addresses it serves under.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(user, group), key.public_key()).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def issue_key_pair(self, file: str) -> None:
        """Writes `file`.key and `file`.pub, the keys that service account tokens are signed with."""
        key = ec.generate_private_key(ec.SECP256R1())
        self._write_key(file, key)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.path(f"{file}.pub").write_bytes(public)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + _LIFETIME)
        )

    def _write(self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.path(f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self._write_key(file, key)

    def _write_key(self, file: str, key: ec.EllipticCurvePrivateKey) -> None:
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        path = self.path(f"{file}.key")
        path.touch(mode=0o600)
        path.write_bytes(text)


def _name(user: str, group: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
