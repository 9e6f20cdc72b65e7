"""The client's TLS: whom it trusts and how it shows its certificate."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import ipaddress
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dradriver.kube.client import Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import PODS
from tests.fakes.apiserver import FakeApiServer

Pair = tuple[bytes, bytes]  # certificate and key, PEM


def make(subject: str, *names: x509.GeneralName, issuer: Pair | None = None) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if issuer is None else x509.load_pem_x509_certificate(issuer[0]).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signer = key if issuer is None else serialization.load_pem_private_key(issuer[1], None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    certificate = builder.sign(signer, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem), private


def server_tls(path: Path, pair: Pair, *, client_ca: bytes | None = None) -> ssl.SSLContext:
    (path / "server.pem").write_bytes(pair[0] + pair[1])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path / "server.pem")
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_ca.decode())
    return context


ADDRESS = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


async def test_a_server_of_the_clusters_ca_is_trusted_and_no_other(tmp_path: Path) -> None:
    ca = make("ca")
    async with FakeApiServer(tls=server_tls(tmp_path, make("server", ADDRESS, issuer=ca))) as api:
        async with Client(dataclasses.replace(api.config, ca=ca[0]), user_agent="t") as client:
            assert (await client.list(PODS))[0] == []
        for stranger in (make("other")[0], b""):
            async with Client(dataclasses.replace(api.config, ca=stranger), user_agent="t") as client:
                with pytest.raises(Unreachable, match="certificate verify failed"):
                    await client.list(PODS)
        async with Client(dataclasses.replace(api.config, insecure=True), user_agent="t") as client:
            assert (await client.list(PODS))[0] == []


async def test_the_name_in_the_certificate_must_fit(tmp_path: Path) -> None:
    ca = make("ca")
    async with FakeApiServer(tls=server_tls(tmp_path, make("server", x509.DNSName("kube.test"), issuer=ca))) as api:
        config = dataclasses.replace(api.config, ca=ca[0])
        async with Client(config, user_agent="t") as client:
            with pytest.raises(Unreachable, match="IP address mismatch"):
                await client.list(PODS)
        async with Client(dataclasses.replace(config, server_name="kube.test"), user_agent="t") as client:
            assert (await client.list(PODS))[0] == []


async def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    ca = make("ca")
    cert, key = make("client", issuer=ca)
    tls = server_tls(tmp_path, make("server", ADDRESS, issuer=ca), client_ca=ca[0])
    async with FakeApiServer(tls=tls) as api:
        config = dataclasses.replace(api.config, ca=ca[0], client_cert=cert, client_key=key)
        async with Client(config, user_agent="t") as client:
            assert (await client.list(PODS))[0] == []
        async with Client(dataclasses.replace(config, client_cert=b""), user_agent="t") as client:
            with pytest.raises(Unreachable):
                await client.list(PODS)


def begin_a_watch(listener: socket.socket, tls: ssl.SSLContext) -> bytes:
    """Answer one request with an event of a watch and no end; return the bytes that come until the client's end."""
    accepted, _ = listener.accept()
    with tls.wrap_socket(accepted, server_side=True) as connection:
        connection.settimeout(10)
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n")
        rest = b""
        with socket.socket(fileno=connection.detach()) as below:  # what TLS says is not answered
            below.settimeout(10)
            while piece := below.recv(65536):
                rest += piece
    return rest


async def test_a_watch_that_is_left_ends_its_connection_without_the_servers_farewell(tmp_path: Path) -> None:
    ca = make("ca")
    tls = server_tls(tmp_path, make("server", ADDRESS, issuer=ca))
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        heard = threads.submit(begin_a_watch, listener, tls)
        config = ServerConfig(url=f"https://127.0.0.1:{listener.getsockname()[1]}", ca=ca[0])
        async with Client(config, user_agent="t") as client:
            async with client.stream(PODS, params={"watch": "1"}, silence_s=10) as lines:
                assert await anext(lines) == b"{}"
            assert await asyncio.wrap_future(heard) == b""
