"""The limits of an MPS daemon and of its servers, which are read back and set again."""

from __future__ import annotations

import pytest

from dradriver.node.errors import SetupError
from dradriver.node.mps import mps_limits
from dradriver.node.mps.mps_files import Server
from dradriver.node.mps.supervisor import CHECK_S
from tests.fakes.mps_node import HALF, A, Node


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits", [Server(memory_mib=512), Server(memory_mib=2048), Server(memory_mib=40_001), Server(thread_percentage=1)]
)
def test_what_was_set_is_read_back_however_it_is_shown(limits: Server, node: Node) -> None:
    node.files.want(A, limits)
    node.look()
    assert node.trouble(A) == ""


@pytest.mark.slow
def test_a_daemon_that_does_not_take_its_limits_does_not_serve(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.say(A, "deaf")
    node.files.want(A, HALF)
    node.look()
    assert "does not keep to 50 % of the threads: '100.0'" in node.trouble(A)
    assert "does not keep to" in caplog.text


@pytest.mark.slow
def test_limits_that_a_client_changed_are_set_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Root of a container has the daemon's uid, and can ask it whatever its folder's owner can."""
    node.files.want(A, HALF)
    node.look()
    node.of(A).ask("set_default_active_thread_percentage 100")
    node.of(A).ask(f"set_default_device_pinned_mem_limit {A} 80000M")
    node.look()
    assert node.of(A).ask("get_default_active_thread_percentage") == "100.0"
    node.now += CHECK_S
    node.look()
    assert node.of(A).ask("get_default_active_thread_percentage") == "50.0"
    assert node.of(A).ask(f"get_default_device_pinned_mem_limit {A}") == "39G"
    assert "a client of MPS changed a limit" in caplog.text
    caplog.clear()
    node.now += CHECK_S
    node.look()
    assert caplog.text == ""


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "more"), [(1024, 2047), (40_000, 40_959)])
def test_a_limit_that_is_shown_in_whole_gib_is_set_again_for_any_shown_value(limit: int, more: int, node: Node) -> None:
    node.files.want(A, Server(memory_mib=limit))
    node.look()
    node.of(A).ask(f"set_default_device_pinned_mem_limit {A} {more}M")
    assert node.of(A).ask(f"get_default_device_pinned_mem_limit {A}") == f"{limit // 1024}G"
    node.now += CHECK_S
    node.look()
    assert node.log(A)[-1] == f"Cmd:set_default_device_pinned_mem_limit {A} {limit}M"


@pytest.mark.slow
def test_limits_of_servers_that_run_are_set_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A server took the daemon's when it started; who speaks to the daemon can give it others, for clients to come."""
    node.files.want(A, HALF)
    node.look()
    for _ in range(2):
        node.of(A).ask("start_server -uid 0")
    first, second = node.of(A).ask("get_server_list").split()
    node.of(A).ask(f"set_active_thread_percentage {first} 100")
    node.of(A).ask(f"set_device_pinned_mem_limit {second} {A} 80000M")
    node.now += CHECK_S
    node.look()
    for server in (first, second):
        assert node.of(A).ask(f"get_active_thread_percentage {server}") == "50.0"
        assert node.of(A).ask(f"get_device_pinned_mem_limit {server} {A}") == "40000M"
    assert caplog.text.count("a client of MPS changed a limit") == 2


@pytest.mark.parametrize("text", [b"9" * 5000 + b"M\n", b"\xff\0M", b"1e999", b""])
def test_no_answer_is_more_than_a_limit_that_is_not_kept(text: bytes) -> None:
    with pytest.raises(SetupError, match="does not keep to a limit of 40000M"):
        mps_limits.hold(lambda _: text.decode("utf-8", "replace"), A, HALF)
