"""A kept port is its server's alone, whatever other tests connect from and listen on meanwhile."""

from __future__ import annotations

import socket

import pytest

from tests.fakes.ports import kept_port


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "0.0.0.0"])
def test_nothing_else_takes_a_kept_port_on_any_address(address: str) -> None:
    with kept_port() as port, socket.socket() as other, pytest.raises(OSError, match="already in use"):
        other.bind((address, port))  # as a client's connection does: without SO_REUSEADDR


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_its_server_listens_on_it(address: str) -> None:
    with kept_port() as port, socket.create_server((address, port)) as server:
        assert server.getsockname() == (address, port)
