"""The wire between the two nodes, their routes, and the API server's service address."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.cluster.errors import ClusterError
from tests.cluster.sandbox import Sandbox
from tests.cluster.settings import API_PORT, API_SERVICE, NODE_A, NODE_B, NodeAddress


def connect(first: Sandbox, second: Sandbox) -> None:
    """Joins the two nodes' networks; afterwards pods and nodes reach each other.

    There is no service proxy: one rule leads to the API server, which is all that
    pods of the tests call by a service's address.

    Raises:
        ClusterError: A network tool failed.
    """
    wire = f"link add {NODE_A.link} type veth peer name {NODE_B.link} netns {second.first_process}"
    # From the machine's own process ids, so only the network is entered here.
    _run(first, ["ip", *wire.split()], namespaces=("net",))
    for sandbox, here, there in ((first, NODE_A, NODE_B), (second, NODE_B, NODE_A)):
        _run(sandbox, ["ip", "-batch", "-"], text=_links_and_routes(here, there))
        _run(sandbox, ["iptables-restore"], text=_api_rules())
        _run(sandbox, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])


def alone(sandbox: Sandbox) -> None:
    """Gives a sandbox without peers the first node's address; all its processes reach each other there.

    Raises:
        ClusterError: A network tool failed.
    """
    # Not every kernel has dummy devices; the loopback device takes any address.
    _run(sandbox, ["ip", "-batch", "-"], text=f"link set lo up\naddress add {NODE_A.address}/32 dev lo\n")


def _links_and_routes(here: NodeAddress, there: NodeAddress) -> str:
    return "\n".join(
        [
            "link set lo up",
            f"address add {here.address}/24 dev {here.link}",
            f"link set {here.link} up",
            f"route add {there.pods} via {there.address}",
            # Leads nowhere, but an address without a route is refused before it can be translated.
            f"route add default via {there.address}",
            "",
        ]
    )


def _api_rules() -> str:
    match = f"-d {API_SERVICE}/32 -p tcp --dport 443"
    target = f"-j DNAT --to-destination {NODE_A.address}:{API_PORT}"
    return "\n".join(["*nat", f"-A PREROUTING {match} {target}", f"-A OUTPUT {match} {target}", "COMMIT", ""])


def _run(sandbox: Sandbox, command: Sequence[str], *, text: str = "", namespaces: Sequence[str] = ()) -> None:
    words = [*sandbox.enter(*namespaces), *command]
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{sandbox.name}: {' '.join(command)} failed: {done.stderr.strip()}")
