"""Events about a pod, as the server takes them."""

from __future__ import annotations

from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.resources import EVENTS
from tests.contract.conftest import Server


async def test_the_same_text_is_one_event_that_is_counted(server: Server) -> None:
    pod = (await server.pod())["metadata"]
    about = Reference(kind="Pod", namespace=pod["namespace"], name=pod["name"], uid=pod["uid"])
    for instance in ("one", "two"):
        recorder = Recorder(server.client, component="gpu-topology-controller", instance=instance)
        for _ in range(2):
            await recorder.record(about=about, type="Warning", reason="NoPlace", message="none is free", action="Place")
    # The server counts bytes where it has a limit; one character may be four of them.
    await recorder.record(about=about, type="Normal", reason="Placed", message="\U0001d546" * 5000, action="Place")

    events, _ = await server.client.list(EVENTS, namespace=server.namespace)
    ours = {event["reason"]: event for event in events if event["source"].get("component") == recorder._component}
    assert ours["NoPlace"]["count"] == 4
    assert len(ours["Placed"]["message"]) == 1024


async def test_an_event_about_a_node_is_taken(server: Server) -> None:
    name = f"node-{server.namespace}"
    about = Reference(kind="Node", namespace="", name=name, uid=name)
    recorder = Recorder(server.client, component="gpu-topology-controller", instance="one")
    await recorder.record(about=about, type="Normal", reason="Read", message="8 GPUs", action="Read")

    selector = f"involvedObject.uid={name}"
    (event,), _ = await server.client.list(EVENTS, namespace="default", field_selector=selector)
    assert event["involvedObject"]["name"] == name
