"""Parts of a GPU on the real cluster."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dradriver.api.base import names
from dradriver.api.claims import exclusive
from tests import deploy
from tests.e2e.kubectl import Namespace, pod, told_why

Object = dict[str, Any]


def claim(device_class: str, requests: Object | None, *, ladder: bool = False) -> Object:
    """Return a claim that keeps off GPUs of one namespace, as a claim of a user has to."""
    one: Object = {"deviceClassName": device_class} | ({"capacity": {"requests": requests}} if requests else {})
    one |= {"selectors": [{"cel": {"expression": exclusive.ELSEWHERE}}]}
    request = {"name": "g", "firstAvailable": [one | {"name": "a"}]} if ladder else {"name": "g", "exactly": one}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [request]}},
    }


@pytest.mark.parametrize("ladder", [False, True])
@pytest.mark.parametrize(
    ("device_class", "requests", "missing"),
    [
        ("share.gpu.topology", None, "cores"),
        ("share.gpu.topology", {"cores": "25"}, "memory"),
        ("share.gpu.topology", {"memory": "1Gi"}, "cores"),
        ("mig.gpu.topology", None, "memorySlices"),
        ("mig.gpu.topology", {"memorySlices": "1"}, "computeSlices"),
    ],
)
def test_a_claim_of_a_part_says_all_that_it_takes(
    namespace: Namespace, device_class: str, requests: Object | None, missing: str, ladder: bool
) -> None:
    done = namespace.apply(claim(device_class, requests, ladder=ladder), check=False)

    assert done.returncode != 0
    assert missing in done.stderr
    assert "would take a whole GPU" in done.stderr


def test_a_claim_that_asks_for_nothing_is_ignored(namespace: Namespace) -> None:
    empty = claim("gpu.topology", None) | {"spec": {}}
    namespace.apply(empty)


def test_a_claim_of_a_whole_gpu_needs_no_amounts(namespace: Namespace) -> None:
    namespace.apply(claim("gpu.topology", None))


NODE = deploy.SHARED[0]
WORDS = {names.POLICY: "best-effort"}


def part(name: str, words: dict[str, str], *, containers: tuple[str, ...] = ("main",)) -> Object:
    return pod(name, gpus=dict.fromkeys(containers, 1), words=words, node=NODE)


def test_shares_fill_a_gpu_and_a_whole_one_waits_for_the_last(namespace: Namespace) -> None:
    sizes = {"quarter": "0.25", "other": "0.25", "half": "0.5"}
    namespace.apply(*(part(name, {names.SHARE: size}) for name, size in sizes.items()))
    namespace.wait_running(*sizes)
    assert len({namespace.annotation(name, names.ALLOCATED) for name in sizes}) == 1
    assert (namespace.annotation("half", names.PART) or "").startswith("50%/")

    namespace.apply(part("more", {names.SHARE_CORES: "1"}), pod("node", gpus=8, words=WORDS, node=NODE))
    told_why(namespace, "more")
    told_why(namespace, "node")
    namespace.delete("quarter")
    namespace.wait_running("more")
    namespace.delete("other", "half", "more")
    namespace.wait_running("node")


def test_two_containers_of_a_pod_have_shares_of_one_gpu(namespace: Namespace) -> None:
    namespace.apply(part("two", {names.SHARE: "0.5"}, containers=("a", "b")))
    namespace.wait_running("two")
    assert namespace.devices("two", "a") == namespace.devices("two", "b") != set()


def test_seven_slices_fill_a_gpu_and_the_eighth_waits(namespace: Namespace) -> None:
    slices = [f"slice-{number}" for number in range(7)]
    namespace.apply(*(part(name, {names.MIG_PROFILE: "1g.10gb"}) for name in slices))
    namespace.wait_running(*slices)
    parts = {namespace.annotation(name, names.PART) for name in slices}
    assert parts == {f"1g.10gb@{start}" for start in range(7)}
    assert len({namespace.annotation(name, names.ALLOCATED) for name in slices}) == 1

    namespace.apply(part("eighth", {names.MIG_PROFILE: "1g.10gb"}), part("large", {names.MIG_PROFILE: "3g.40gb"}))
    told_why(namespace, "eighth")
    told_why(namespace, "large")
    namespace.delete(*slices)
    namespace.wait_running("eighth", "large")


def test_a_pod_of_whole_gpus_and_slices_keep_off_each_other(namespace: Namespace) -> None:
    namespace.apply(pod("whole", gpus=8, words=WORDS, node=NODE))
    namespace.wait_running("whole")
    namespace.apply(part("slice", {names.MIG_PROFILE: "1g.10gb"}))
    told_why(namespace, "slice")
    namespace.delete("whole")
    namespace.wait_running("slice")


def capabilities(namespace: Namespace, name: str, container: str) -> set[str]:
    """Return the nodes that open MIG instances to a container: two of each instance."""
    return set(namespace.kubectl("exec", name, "-c", container, "--", "ls", "/dev/nvidia-caps").stdout.split())


def test_a_pod_with_several_slices_is_applied_again_unchanged(namespace: Namespace) -> None:
    manifest = pod("several", gpus={"two": 2, "one": 1}, words={names.MIG_PROFILE: "1g.10gb"}, node=NODE)
    namespace.apply(manifest)
    namespace.wait_running("several")
    before = namespace.get("pod", "several")
    used = [container["resources"]["claims"] for container in before["spec"]["containers"]]
    assert [[use["request"] for use in each] for each in used] == [["two-1", "two-2"], ["one"]]
    two, one = (capabilities(namespace, "several", container) for container in ("two", "one"))
    assert (len(two), len(one), two & one) == (4, 2, set())

    text = yaml.safe_dump(manifest)
    for way in ([], ["--server-side", "--force-conflicts"], ["--server-side"], []):
        namespace.kubectl("apply", *way, "-f", "-", stdin=text)
        assert namespace.get("pod", "several")["spec"] == before["spec"]
    assert namespace.kubectl("diff", "-f", "-", stdin=text, check=False).returncode == 0

    namespace.kubectl("apply", "--server-side", "-f", "-", stdin=text.replace("several", "served"))
    namespace.wait_running("served")
    after = namespace.get("pod", "served")["spec"]
    namespace.kubectl("apply", "--server-side", "-f", "-", stdin=text.replace("several", "served"))
    assert namespace.get("pod", "served")["spec"] == after
    assert [container["resources"]["claims"] for container in after["containers"]] == used
