"""The whole agent over real unix sockets, with a fake kubelet and a fake API server."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any

import grpc
import pytest
from prometheus_client import REGISTRY

from dradriver.api.base import names
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dradriver.node.errors import SetupError
from dradriver.node.hardware import Backend
from dradriver.node.kubelet import sockets
from dradriver.node.publishing import mode_transition, publisher
from dradriver.process import replaced_files
from dradriver.topology.nccl.tuning import CONF_PATH
from dradriver.topology.vendors import NVIDIA
from tests.fakes.agents import Hanging, becomes, lose, ready_port
from tests.fakes.kubelet import dial
from tests.fakes.node import NODE, NodeUnderTest, Object, a_node, claim, device, eventually, result


async def test_from_registration_to_a_prepared_and_given_back_claim() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        assert {d["name"] for d in node.slices[0]["spec"]["devices"]} == {device(i) for i in range(8)}
        asked = node.put_claim(claim("c", [0, 3]))
        answer = (await node.kubelet.prepare(asked))[asked[2]]
        assert answer.error == ""
        assert [d.device_name for d in answer.devices] == [device(0), device(3)]
        assert {d.pool_name for d in answer.devices} == {NODE}
        (spec,) = node.specs.values()
        ids = [f"{spec['kind']}={d['name']}" for d in spec["devices"]]
        assert [list(d.cdi_device_ids) for d in answer.devices] == [[one] for one in ids]
        assert node.checkpoint == [asked[2]]
        assert (await node.kubelet.unprepare(asked))[asked[2]].error == ""
        assert (node.specs, node.checkpoint) == ({}, [])


async def test_the_plugin_says_who_it_is() -> None:
    async with a_node() as node, node.agent():
        await eventually(lambda: node.kubelet.seen)
        (info,) = node.kubelet.seen.values()
        assert (info.type, info.name) == ("DRAPlugin", names.DRIVER)
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        assert info.endpoint == str(node.state / "dra-pod-1.sock")


async def test_a_plugin_that_the_kubelet_refuses_publishes_once_it_is_accepted() -> None:
    async with a_node() as node:
        node.kubelet.accept = False
        async with node.agent():
            await eventually(lambda: node.kubelet.seen)
            node.kubelet.accept = True
            await node.kubelet.register(next(iter(node.kubelet.seen)))
            await node.published()


async def test_trap_18_ready_means_registered_and_published() -> None:
    async with a_node() as node, ready_port() as (port, status):
        node.kubelet.accept = False
        async with node.agent(health_port=port):
            await eventually(lambda: node.kubelet.seen)
            assert (await status(), await status("/healthz")) == (503, 200)
            node.kubelet.accept = True
            await node.kubelet.register(next(iter(node.kubelet.seen)))
            await becomes(status, 200)
            assert node.slices


async def test_a_node_where_nothing_is_published_on_purpose_is_ready() -> None:
    async with a_node() as node, ready_port() as (port, status):
        node.api.put(NODES, {"metadata": {"name": NODE}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
        async with node.agent(health_port=port):
            await becomes(status, 200)
            assert node.slices == []


async def test_sigterm_removes_the_sockets_and_leaves_slices_and_claims() -> None:
    async with a_node() as node:
        async with node.agent():
            await node.published()
            asked = node.put_claim(claim("c", [0]))
            await node.kubelet.prepare(asked)
        assert list(node.root.rglob("*.sock")) == []
        assert len(node.slices) == len(node.specs) == len(node.checkpoint) == 1


async def test_trap_7_when_its_sockets_vanish_the_plugin_serves_again_and_publishes_only_then() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        await eventually(lambda: node.kubelet.registrations == 1)  # slices can come before the kubelet is done
        node.kubelet.accept = False
        for path in sorted(node.root.rglob("*.sock")):
            path.unlink()
        await eventually(lambda: node.kubelet.registrations == 2)
        node.api.remove(RESOURCE_SLICES, node.slices[0]["metadata"]["name"])
        assert node.slices == []
        node.kubelet.accept = True
        await node.kubelet.register(next(iter(node.kubelet.seen)))
        await node.published()
        asked = node.put_claim(claim("c", [0]))
        assert (await node.kubelet.prepare(asked))[asked[2]].error == ""


async def test_trap_6_a_kubelet_that_restarts_gets_the_slices_back() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        node.api.remove(RESOURCE_SLICES, node.slices[0]["metadata"]["name"])
        await node.kubelet.register(next(iter(node.kubelet.seen)))
        await eventually(lambda: node.slices)


async def test_trap_9_a_new_instance_clears_a_killed_ones_sockets_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_SURE_S", 0.01)
    async with a_node() as node:
        left = sockets.paths(kubelet_root=node.root, state_dir=node.state, pod_uid="killed")
        for path in (left.registration, left.dra):
            path.parent.mkdir(parents=True)
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        async with node.agent():
            await node.published()
            assert not left.registration.exists()
            assert not left.dra.exists()


async def test_trap_10_either_of_two_instances_serves_claims_and_the_older_goes_on_after_the_newer() -> None:
    async with a_node() as node, node.agent("pod-1"):
        await node.published()
        asked = [node.put_claim(claim(f"c{i}", [i])) for i in range(2)]
        await node.kubelet.prepare(asked[0])
        async with node.agent("pod-2"):
            await eventually(lambda: len(node.kubelet.seen) == 2)
            answer = (await node.kubelet.prepare(*asked))[asked[0][2]]  # the newer knows the older's claims
            assert [d.device_name for d in answer.devices] == [device(0)]
            await node.kubelet.unprepare(asked[0])
        await eventually(lambda: len(node.kubelet.seen) == 1)
        assert (await node.kubelet.unprepare(asked[1]))[asked[1][2]].error == ""
        assert (node.specs, node.checkpoint) == ({}, [])
        assert [s["spec"]["pool"]["generation"] for s in node.slices] == [1]


async def test_a_second_instance_of_the_same_pod_does_not_take_over() -> None:
    async with a_node() as node, node.agent("pod-1"):
        await node.published()
        with pytest.raises(ExceptionGroup) as caught:
            async with node.agent("pod-1") as second:
                await second
        assert caught.group_contains(SetupError, match="another process serves this socket")
        asked = node.put_claim(claim("c", [0]))
        assert (await node.kubelet.prepare(asked))[asked[2]].error == ""


async def test_trap_2_a_kubelet_that_gives_up_leaves_nothing_behind() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        old, new = node.put_claim(claim("old", [0])), node.put_claim(claim("new", [0]))
        await node.kubelet.prepare(old)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await node.kubelet.prepare(new, give_up_s=0.05)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert node.checkpoint == [old[2]]
        await node.kubelet.unprepare(old)
        assert (await node.kubelet.prepare(new))[new[2]].error == ""


async def test_trap_3_a_prepare_that_comes_before_the_unprepare_is_answered_after_it() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        old, new, other = (node.put_claim(claim(name, [gpu])) for name, gpu in (("old", 0), ("new", 0), ("other", 1)))
        await node.kubelet.prepare(old)
        waiting = asyncio.create_task(node.kubelet.prepare(new))
        assert (await node.kubelet.prepare(other))[other[2]].error == ""
        assert not waiting.done()
        await node.kubelet.unprepare(old)
        assert (await waiting)[new[2]].error == ""


async def test_trap_4_unprepare_works_when_the_claim_is_gone_or_was_never_prepared() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        asked = node.put_claim(claim("c", [0]))
        await node.kubelet.prepare(asked)
        node.api.remove(RESOURCE_CLAIMS, "c", "default")
        answers = await node.kubelet.unprepare(asked, ("default", "never", "uid-never"))
        assert {uid: a.error for uid, a in answers.items()} == {asked[2]: "", "uid-never": ""}
        assert (node.specs, node.checkpoint) == ({}, [])


async def test_trap_5_specs_are_there_again_after_a_reboot() -> None:
    async with a_node() as node:
        async with node.agent():
            await node.published()
            await node.kubelet.prepare(node.put_claim(claim("c", [0])))
        before = node.specs
        for path in node.cdi.iterdir():
            path.unlink()
        node.cdi.rmdir()
        async with node.agent():
            await eventually(lambda: node.cdi.exists() and node.specs == before)


async def test_a_claim_whose_unprepare_never_comes_is_given_back() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        await node.kubelet.prepare(node.put_claim(claim("c", [0])))
        node.api.remove(RESOURCE_CLAIMS, "c", "default")
        await eventually(lambda: (node.specs, node.checkpoint) == ({}, []))


async def test_a_gpu_that_vanishes_leaves_the_slices_and_comes_back_under_its_own_name() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        await lose(node, "2")
        await eventually(lambda: len(node.slices[0]["spec"]["devices"]) == 7)
        assert device(2) not in {d["name"] for d in node.slices[0]["spec"]["devices"]}
        waiting = asyncio.create_task(node.kubelet.prepare(node.put_claim(claim("c", [2]))))
        await lose(node)
        answer = (await waiting)["uid-c"]
        assert (answer.error, answer.devices[0].device_name) == ("", device(2))
        await eventually(lambda: len(node.slices[0]["spec"]["devices"]) == 8)


async def test_one_bad_claim_does_not_fail_the_call() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        good, bad = node.put_claim(claim("good", [0])), node.put_claim(claim("bad", [1]))
        answers = await node.kubelet.prepare(good, (bad[0], bad[1], "uid-of-another"))
        assert answers[good[2]].error == ""
        assert "was deleted and created again" in answers["uid-of-another"].error


async def test_an_unknown_call_is_refused_and_the_socket_stays() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        async with dial(node.state / "dra-pod-1.sock") as channel:
            call: Any = channel.unary_unary("/v2.DRAResourceHealth/NodeWatchResources")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=5)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        asked = node.put_claim(claim("c", [0]))
        assert (await node.kubelet.prepare(asked))[asked[2]].error == ""


async def test_the_claims_status_says_what_it_has_and_others_entries_stay() -> None:
    async with a_node() as node, node.agent():
        await node.published()
        obj = claim("c", [0, 3])
        nic = {"request": "nic", "driver": "nic.example.com", "pool": "p", "device": "nic0"}
        obj["status"]["allocation"]["devices"]["results"].append(nic)
        theirs = {"driver": "nic.example.com", "pool": "p", "device": "nic0", "data": {"speed": 1}}
        obj["status"]["devices"] = [theirs]
        asked = node.put_claim(obj)
        await node.kubelet.prepare(asked)

        def devices() -> list[Any]:
            found = node.api.find(RESOURCE_CLAIMS, "c", "default")
            return found["status"]["devices"] if found else []

        await eventually(lambda: len(devices()) == 3)
        assert devices()[0] == theirs
        assert [(d["device"], d["conditions"][0]["type"]) for d in devices()[1:]] == [
            (device(0), "Ready"),
            (device(3), "Ready"),
        ]
        (patch,) = [r for r in node.api.requests if r.method == "PATCH"]
        assert patch.path.endswith("/resourceclaims/c/status")
        assert patch.query == {"fieldManager": "gpu-topology-node", "force": "true"}


async def test_a_status_that_an_agent_had_no_time_to_write_is_written_by_the_next() -> None:
    async with a_node() as node:
        other = node.put_claim(claim("other", [1]))
        asked = node.put_claim(claim("c", [0]))

        def devices(name: str) -> list[Any]:
            found = node.api.find(RESOURCE_CLAIMS, name, "default")
            return found["status"].get("devices", []) if found else []

        def patched(name: str) -> int:
            return sum(r.method == "PATCH" and r.path.endswith(f"/{name}/status") for r in node.api.requests)

        async with node.agent():
            await node.published()
            await node.kubelet.prepare(other)
            await eventually(lambda: devices("other"))
            refused = node.api.fail(method="PATCH", status=403, reason="Forbidden", times=math.inf)
            await node.kubelet.prepare(asked)
            await eventually(lambda: patched("c"))
        assert not devices("c")
        refused.stop()
        written = patched("other")  # the first agent writes it twice if it read the claim before its write was stored
        async with node.agent("pod-2"):
            await eventually(lambda: devices("c"))
        assert [entry["device"] for entry in devices("c")] == [device(0)]
        assert patched("other") == written
        assert written in (1, 2)


async def test_while_the_driver_hangs_claims_are_given_back_and_slices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node() as node:
        asked = node.put_claim(claim("c", [0]))
        async with node.agent():
            await node.published()
            await node.kubelet.prepare(asked)
        before, found = node.slices, Hanging()
        for path in node.cdi.iterdir():
            path.unlink()  # a reboot
        monkeypatch.setattr("dradriver.node.hardware.backend", lambda *_, **__: Backend(NVIDIA, found))
        async with node.agent():
            await eventually(lambda: node.kubelet.registrations == 2 and node.specs)
            assert (await node.kubelet.unprepare(asked))[asked[2]].error == ""
            assert (node.specs, node.checkpoint, node.slices) == ({}, [], before)
            waiting = asyncio.create_task(node.kubelet.prepare(asked))
            found.released.set()
            assert (await waiting)[asked[2]].error == ""
            assert node.slices == before


async def test_the_policies_file_is_followed_and_a_bad_one_at_the_start_changes_nothing_that_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaced_files, "PERIOD_S", 0.01)

    def told(of: NodeUnderTest) -> bool:
        (spec,) = of.specs.values()
        return CONF_PATH in str(spec)

    async def prepared(of: NodeUnderTest, name: str) -> bool:
        asked = of.put_claim(claim(name, [0, 1]))
        assert (await of.kubelet.prepare(asked))[asked[2]].error == ""
        found = told(of)
        await of.kubelet.unprepare(asked)
        return found

    def put(text: str) -> None:
        (file.parent / "new").write_text(text)
        (file.parent / "new").replace(file)  # as the kubelet does: never a part of it

    async with a_node() as node:
        file = node.root / "policies.yaml"
        async with node.agent(policies=file):
            await node.published()
            before = node.slices
            assert not await prepared(node, "without")
        put("gpus: [{mig: dynamc}]\nnccl: {tuning: auto}")
        async with node.agent("pod-2", policies=file):
            await eventually(lambda: node.kubelet.registrations == 2)
            assert node.slices == before
            assert not await prepared(node, "bad")
            put("nccl: {tuning: auto}")
            await eventually(lambda: REGISTRY.get_sample_value("gpu_topology_policies_valid") == 1)
            assert await prepared(node, "good")
            put("nccl: {tuning: fast}")
            await eventually(lambda: REGISTRY.get_sample_value("gpu_topology_policies_valid") == 0)
            assert await prepared(node, "kept")
            assert node.slices == before


async def test_a_share_is_prepared_and_keeps_its_gpu_as_it_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_files, "PERIOD_S", 0.01)
    monkeypatch.setattr(publisher, "LOOK_S", 0.01)
    monkeypatch.setattr(mode_transition, "GRACE_S", 0.0)
    monkeypatch.setattr(mode_transition, "ASK_S", 0.0)
    consumed = {"cores": "25", "memory": "4Gi"}

    async with a_node() as node:
        file = node.root / "policies.yaml"
        file.write_text("gpus: [{numbers: [0], shared: time-slicing}]")

        def shown() -> Object:
            (found,) = [d for one in node.slices for d in one["spec"]["devices"] if d["name"] == device(0)]
            return dict(found)

        async with node.agent(policies=file):
            await node.published()
            assert shown()["allowMultipleAllocations"]
            results = [result("gpu", device(0), shareID="s", consumedCapacity=consumed)]
            asked = node.put_claim(claim("share", results=results))
            assert (await node.kubelet.prepare(asked))[asked[2]].error == ""
            (file.parent / "new").write_text("gpus: []")
            (file.parent / "new").replace(file)
            await eventually(lambda: "taints" in shown())
            assert shown()["allowMultipleAllocations"]
            await node.kubelet.unprepare(asked)
            node.api.remove(RESOURCE_CLAIMS, "share", "default")
            await eventually(lambda: "allowMultipleAllocations" not in shown() and "taints" not in shown())
