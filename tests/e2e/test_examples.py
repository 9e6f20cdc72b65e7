"""Every example does on a real cluster what its comment says: at the least, all its pods run at the same time."""

from __future__ import annotations

from typing import Any

from dradriver.api.base import names
from tests import examples
from tests.cluster.settings import minor_of
from tests.demo.examples import EXAMPLES
from tests.e2e import gangs
from tests.e2e.kubectl import Namespace, eventually, no_gpu_is_owned_twice, owners

Object = dict[str, Any]
OWN = [path for path in examples.TASKS if examples.own(path)]


def test_examples(namespace: Namespace) -> None:
    # The scheduler alone chooses for this pod. Next to it the controller might choose the same four GPUs for the pod
    # with the policy nvlink; what is left of the two nodes then holds no other four for that one.
    namespace.kubectl("apply", "-f", str(EXAMPLES / "claim-template.yaml"))
    namespace.wait_running("claim-template")
    namespace.kubectl("apply", "-f", str(EXAMPLES))
    namespace.kubectl("wait", "--for=create", "pod", "-l", "app=single-gpu", "--timeout=60s")
    pods = [item["metadata"]["name"] for item in namespace.list("pods")]
    namespace.wait_running(*pods)

    assert len(owners(namespace.cluster)) == 15
    assert no_gpu_is_owned_twice(namespace.cluster)
    assert namespace.annotation("nvlink-quad", names.LEVEL) == "nvlink"
    assert len(namespace.devices("claim-template", "train")) == 4
    assert namespace.devices("two-containers", "encode").isdisjoint(namespace.devices("two-containers", "decode"))


def test_the_job_whose_pods_are_a_gang(namespace: Namespace) -> None:
    namespace.kubectl("apply", "-f", str(EXAMPLES / "gangs" / "job.yaml"))
    pods = [one["metadata"]["name"] for one in gangs.pods_of(namespace, "gang-job", 2).values()]
    gangs.run_whole(namespace, pods, container="train", barrier=minor_of(namespace.cluster.version) >= "1.36")
    assert [namespace.annotation(name, names.RANK_HINT) for name in pods] == ["0", "1"]
    assert no_gpu_is_owned_twice(namespace.cluster)


def test_the_server_takes_every_example_as_it_stands(namespace: Namespace) -> None:
    """Strictly, by the webhook and all admission policies, but without making anything: images and volumes are real."""
    files = [word for path in OWN for word in ("-f", str(path))]
    said = namespace.kubectl("apply", "--dry-run=server", "--validate=strict", *files)
    assert said.stdout.count("created (server dry run)") == sum(len(examples.runnable(path)) for path in OWN) + 1, (
        "all objects, the one PersistentVolumeClaim included"
    )
    assert "Warning" not in said.stderr


def make(namespace: Namespace, name: str) -> None:
    """Apply an example in small."""
    (path,) = [path for path in OWN if path.name == name]
    namespace.apply(*examples.runnable(path))


def run(namespace: Namespace, name: str, count: int = 1) -> list[Object]:
    """Apply an example in small, and return its pods once there are so many more and all of them run."""
    before = {one["metadata"]["name"] for one in namespace.list("pods")}
    make(namespace, name)

    def made() -> list[str] | None:
        found = [one["metadata"]["name"] for one in namespace.list("pods") if one["metadata"]["name"] not in before]
        return found if len(found) == count else None

    pods = eventually(f"{count} pods of {name}", made)
    namespace.wait_running(*pods)
    return [namespace.get("pod", pod) for pod in pods]


def told(pod: Object, key: str) -> str:
    """Return what an annotation of a pod says, empty where it has none."""
    return str(pod["metadata"]["annotations"].get(key, ""))


def test_examples_of_serving_and_of_parts_do_what_they_promise(namespace: Namespace) -> None:
    (notebook,) = run(namespace, "notebook.yaml")
    assert told(notebook, names.PART).startswith("25%/")
    slices = run(namespace, "mig.yaml", 2)
    assert len({told(pod, names.ALLOCATED) for pod in slices}) == 1
    assert len({told(pod, names.PART) for pod in slices}) == 2
    assert all(told(pod, names.PART).startswith("1g.10gb@") for pod in slices)

    (triton,) = run(namespace, "triton.yaml")
    (mixed,) = run(namespace, "mixed-precision.yaml")
    for pod in (triton, mixed):
        assert pod["spec"]["nodeName"] == "node-b", "which has H100"
        assert (told(pod, names.LEVEL), told(pod, names.FALLBACK)) == ("nvlink", "")
    (vllm,) = run(namespace, "vllm.yaml")
    assert told(vllm, names.LEVEL) == "nvlink"
    assert len(told(vllm, names.ALLOCATED).split(",")) == 4
    (aligned,) = run(namespace, "cpus-by-kubelet.yaml")
    assert aligned["status"]["qosClass"] == "Guaranteed"
    assert told(aligned, names.LEVEL) in ("nvlink", "pcie-switch", "pcie-root", "numa")
    whole = [gpu for pod in (triton, mixed, vllm, aligned) for gpu in told(pod, names.ALLOCATED).split(",")]
    assert len(whole) == len(set(whole)) == 12
    assert not {*whole} & {told(pod, names.ALLOCATED) for pod in (notebook, *slices)}


def test_examples_of_training_start_whole(namespace: Namespace) -> None:
    barrier = minor_of(namespace.cluster.version) >= "1.36"
    for name, job in (("ddp-job.yaml", "ddp"), ("restart-after-a-fault.yaml", "restart-after-a-fault")):
        make(namespace, name)
        pods = [one["metadata"]["name"] for one in gangs.pods_of(namespace, job, 2).values()]
        gangs.run_whole(namespace, pods, container="train", barrier=barrier)
        assert [namespace.annotation(pod, names.RANK_HINT) for pod in pods] == ["0", "1"]
        if name == "ddp-job.yaml":
            assert {namespace.annotation(pod, names.LEVEL) for pod in pods} == {"nvlink"}
            resolved = namespace.kubectl(
                "get", "endpoints", "ddp", "-o", "jsonpath={.subsets[*].addresses[*].hostname}"
            )
            assert sorted(resolved.stdout.split()) == ["ddp-0", "ddp-1"], "the names that torchrun finds its peers by"
    assert len(owners(namespace.cluster)) == 16
    assert no_gpu_is_owned_twice(namespace.cluster)
