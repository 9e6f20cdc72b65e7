"""Write the tables of docs/reference/annotations.md: every annotation, with the values that the code takes.

Usage: python -m docs.annotations [--print]

The annotations, their values and where they can be written come from the declarations in the code. Their meanings are
in this file. The rest of the page is written by hand, around the marks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from dradriver.allocator.request import NEAR_NIC
from dradriver.allocator.set_policies import POLICIES
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.policies.policy_sections import WORKLOADS
from dradriver.api.vocabulary import values
from dradriver.api.vocabulary.annotation_words import EVERY, About, Word

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "reference" / "annotations.md"
MARK: Final = "<!-- written by make reference: {} -->"
END: Final = "<!-- end -->"
_HEADINGS: Final = {
    About.SET: (
        "A set of whole GPUs",
        "How the GPUs of a pod must be connected. These annotations are for whole GPUs only.",
    ),
    About.GPU: ("Each GPU", "Which kind of GPU the pod needs. These annotations are for whole GPUs and for fractions."),
    About.PART: (
        "A fraction of a GPU",
        "Each container that requests a GPU gets a fraction of this size ([parts.md](../tasks/parts.md)).",
    ),
    About.POD: ("The pod", "How the pod is placed, what NCCL gets, and when the pod ends."),
    About.GANG: (
        "A gang",
        "The pods of a gang start together, or none of them starts ([gangs.md](../tasks/gangs.md)).",
    ),
}
_NO_DEFAULT: Final = {
    names.REQUIRED: tuple(values.CONSTRAINTS),
    names.WORKLOAD: tuple(WORKLOADS),
    names.MULTI_NODE_POLICY: tuple(values.STRATEGIES),
    names.NEAR_NIC: NEAR_NIC,
}  # what may be said, and is nothing where it is not said
_FORMS: Final = {
    names.PREFERRED: "values of `required`, best first, separated by commas",
    names.PRODUCT: "the full name that `nvidia-smi -L` prints, or a pattern",
    names.CLAIM: "a name in the pod's `resourceClaims`",
}  # if the error message says it less well
# What each annotation means, after an example where it has a form and no list of values.
MEANINGS: Final[dict[str, tuple[str, str]]] = {
    names.REQUIRED: (
        "",
        "Required: the pod waits until a free set meets all of these, separated by commas. `linked` and "
        "`nvlink-domain` "
        "are other names of `nvlink`, which means direct links of any vendor.",
    ),
    names.PREFERRED: (
        "",
        "Preferred: the driver takes the first of these that some free set meets. If no free set meets any of them, it "
        "takes any set.",
    ),
    names.REQUIRE_NVLINK: ("", "Required: `true` means the same as `required: nvlink`."),
    names.MIN_BANDWIDTH: (
        "100GB/s",
        "Required: direct links join the GPUs, and the slowest step of the set's best ring has at least this line rate "
        "in one direction. One link of a V100 or H100 has 25 GB/s. Eight GPUs of an HGX H100 have 450 GB/s.",
    ),
    names.MIN_BUSBW: (
        "100GB/s",
        "Required: NCCL is predicted to reach at least this all-reduce bus bandwidth on the set, with or without "
        "NVLink. Only for NVIDIA's GPUs.",
    ),
    names.MAX_CROSS_NVSWITCH: (
        "2",
        "Required: at most this many GPUs are outside the NVLink domain that has most of the set.",
    ),
    names.PREFER_SAME_NUMA: (
        "",
        "Preferred: of sets with equal bandwidth, the driver takes the set on the fewest NUMA nodes.",
    ),
    names.NEAR_NIC: (
        "",
        "`required`: each GPU has a NIC near it, or the NICs in the pod's claim are free and near its GPUs. "
        "`preferred`: of equally good sets, the driver takes one with such NICs "
        "([nic-claims.md](../tasks/nic-claims.md#near-what-is-near)).",
    ),
    names.STRATEGY: (
        "",
        "Which of equally good places the driver takes. It can also follow a policy: `policy: nvlink,pack`.",
    ),
    names.PRODUCT: ("NVIDIA H100*", "Required: all GPUs have this product name (case-sensitive)."),
    names.ARCHITECTURE: ("hopper", "Required: all GPUs have this architecture."),
    names.MIN_MEMORY: ("40Gi", "Required: each GPU has at least this much memory."),
    names.MIN_DRIVER: ("580.95.05", "Required: the node has this driver version or a later one."),
    names.MIN_CUDA: ("12.4", "Required: the node's driver supports this CUDA version or a later one."),
    names.VENDOR: (
        "",
        "The vendor of the GPUs, if no limit names it. A pod gets GPUs of one vendor "
        "([vendors.md](../tasks/vendors.md)).",
    ),
    names.SHARE: (
        "0.25",
        "This fraction of the memory and the compute of one GPU. The policies file says which GPUs can be shared.",
    ),
    names.SHARE_MEMORY: ("10Gi", "A share with this much memory. It can be combined with `cores`."),
    names.SHARE_CORES: ("25", "A share with this percentage of the compute. It can be combined with `memory`."),
    names.MIG_PROFILE: (
        "1g.10gb",
        "A MIG slice of this profile. The slice exists already, or the driver creates it for the pod and deletes it "
        "after the pod.",
    ),
    names.GPUS: ("4", "The number of GPUs, if no container has a GPU limit."),
    names.NCCL: (
        "",
        "Whether NCCL gets a topology file. `auto`: if NCCL needs one. `file`: always. `env`: always, and "
        "`NCCL_TOPO_FILE` names it. `near-nics`: as `auto`, and `NCCL_IB_HCA` names the near network cards. `off`: "
        "never ([nccl.md](../tasks/nccl.md)).",
    ),
    names.WORKLOAD: (
        "",
        "A type of job. It stands for the annotations that jobs of this type need ([list](policies.md#workloads)).",
    ),
    names.CLAIM: (
        "",
        "The claim with the GPUs, if a pod has several claims from templates and no GPU limit "
        "([claims.md](../tasks/claims.md)).",
    ),
    names.PLACEMENT: (
        "",
        "Who chooses the GPUs. `placed`: the controller. `static`: kube-scheduler alone, by attributes "
        "([claims.md](../tasks/claims.md)).",
    ),
    names.WHEN_FULL: (
        "",
        "What happens if no place is free. `wait`: the pod waits. `hand-over`: the pod goes to kube-scheduler, so that "
        "autoscalers see it ([claims.md](../tasks/claims.md)).",
    ),
    names.SPOT: (
        "",
        "Whether the driver prefers or avoids spot nodes among places that are equally good otherwise "
        "([below](#spot-nodes)).",
    ),
    names.SHARED_CLAIM: (
        "duo",
        "All pods of a namespace with this name share one set, and each of them uses all of its GPUs. Examples are a "
        "trainer with its sampler, and a hot standby ([claims.md](../tasks/claims.md#one-set-for-several-pods)).",
    ),
    names.MAX_DURATION: (
        "1h30m",
        "The pod ends this long after its start on the node. The webhook writes the time into "
        "`spec.activeDeadlineSeconds`. If the pod has both, the smaller value counts. The pod can use "
        "[reserved GPUs](../tasks/tenants.md#reservations) if it ends early enough.",
    ),
    names.IDLE_TIMEOUT: (
        "30m",
        "If the GPUs do no work for this long, the controller writes an Event and later ends the pod. This needs a "
        "setting of the chart ([idle.md](../tasks/idle.md)).",
    ),
    names.GANG: (
        "train-1",
        "The name of the gang: all pods of a namespace with this name are one gang. With `auto`, the pods of one owner "
        "are one gang.",
    ),
    names.GANG_SIZE: (
        "4-8",
        "The number of pods. With `8`, all eight pods start together. With `4-8`, four pods are enough to start, and "
        "the others join later.",
    ),
    names.MULTI_NODE_POLICY: ("", "Which of equally good nodes the driver takes."),
    names.MAX_NODES: ("2", "Required: the gang is on at most this many nodes."),
    names.MIN_GPUS_PER_NODE: ("4", "Required: the gang has at least this many GPUs on each of its nodes."),
    names.MIN_NETWORK_BANDWIDTH: (
        "50GB/s",
        "Required: if the gang is on several nodes, each node has at least this network rate. Without `network.gbps` "
        "in the policies file, all nodes must then be in one group of the narrowest network level.",
    ),
    names.NEAR: (
        "leaf",
        "Required: one group of nodes at this level of the network, such as one leaf, holds all pods. With "
        "`preferred leaf`, the driver can also use a wider level.",
    ),
    names.ON_MEMBER_LOSS: (
        "",
        "What happens if the gang loses a pod. `replace`: another pod takes its place. `restart`: all pods start "
        "again.",
    ),
}
RESULTS: Final = {
    names.ALLOCATED: "The UUIDs of the pod's GPUs.",
    names.RING_ORDER: "The indices of the GPUs on their node, in the order of the best ring.",
    names.BANDWIDTH: "The rate of the slowest step of that ring in one direction, as in `min-bandwidth`. Only pods "
    "without `busbw` have it, for example pods with AMD's GPUs. Pods with Huawei's NPUs do not have it, because Huawei "
    "does not publish the link rates.",
    names.BUSBW: "The predicted all-reduce bus bandwidth in GB/s, as nccl-tests counts it. A pod with one GPU does not "
    "have it.",
    names.LEVEL: "The slowest kind of link in the ring: `nvlink`, `pcie-switch`, `pcie-root`, `numa` or `node` "
    "([compared with nvidia-smi](glossary.md#levels-and-nvidia-smis-words)).",
    names.FALLBACK: "The preferences that this set does not meet.",
    names.PART: "On a pod with fractions of GPUs: compute and memory of each share (`25%/20480Mi`), or profile and "
    "first "
    "memory slice of each MIG slice (`1g.10gb@6`).",
    names.RANK_HINT: "The pod's position in the order of its gang, from 0 "
    "([gangs.md](../tasks/gangs.md#what-is-written-back)).",
    names.GANG_NODES: "The nodes of the gang, in the order of the ranks.",
    names.GANG_REACH: "The narrowest level of the network that holds all nodes of the gang: `node`, `fabric`, another "
    "level, or `cluster`.",
    names.GANG_BUSBW: "The all-reduce bus bandwidth in GB/s that is predicted for the whole gang.",
    names.REASON: "Why the pod waits. The Event `WaitsForGPUs` says the same.",
    names.IDLE_END: "When the pod is ended, unless its GPUs work until then. The Event `IdleGPUs` says the same "
    "([idle.md](../tasks/idle.md)).",
}


def allowed(word: Word) -> str:
    """Return what a word may say, as a cell: its choices, or an example and the rule that refusals state."""
    if word.key in _NO_DEFAULT:
        return ", ".join(f"`{one}`" for one in _NO_DEFAULT[word.key])
    if word.choices:
        default = "false" if set(word.choices) == {*values.FLAGS} else word.choices[0]
        return ", ".join(f"`{one}`" + " (default)" * (one == default) for one in word.choices)
    rule = _FORMS.get(word.key) or _rule(word)
    example = MEANINGS[word.key][0]
    return f"`{example}`: {rule}" if example else rule


def _rule(word: Word) -> str:
    """Return what the refusal of a bad value says to write, without its examples."""
    try:
        word.read(word.key, "\0")
    except WordError as refusal:
        said = str(refusal).partition(". Write ")[2].replace("it as nvidia-smi prints it", "a version")
        return re.sub(r"(?:, for example| such as|\.(?: |$)).*", "", said)
    raise AssertionError(f"{word.key} takes everything: write in docs/annotations.py what it may say")


def rows(about: About) -> Iterator[str]:
    """Yield the rows of all words about something, in the order of their declarations."""
    for word in EVERY:
        if word.about is not about:
            continue
        if word.key == names.POLICY:
            yield from _of_policy()
            continue
        file = " yes" if word.of_policies and about is not About.GANG else ""
        yield f"| `{word.key}` | {allowed(word)} | {MEANINGS[word.key][1]} |{file} |"


def _of_policy() -> Iterator[str]:
    first, *hard = POLICIES
    yield f"| `{names.POLICY}` | `{first}` (default) | The driver takes the best free set. | |"
    said = ", ".join(f"`{one}`" for one in hard)
    meaning = (
        "Required: the GPUs are joined by NVLink (`linked`: by links of any vendor), on one NUMA node, or under one "
        "PCIe "
        "root. Otherwise the pod waits."
    )
    yield f"| | {said} | {meaning} | |"
    meaning = "The annotations that an administrator wrote under that name."
    yield f"| | a name of the [policies file](policies.md#policies) | {meaning} | |"


def tables() -> dict[str, str]:
    """Return what stands between the marks of the page, by the marks' names."""
    parts: list[str] = []
    for about, (heading, lead) in _HEADINGS.items():
        head = ["| annotation | values | meaning | in policies |", "|---|---|---|---|"]
        parts += [f"### {heading}", "", lead, "", *head, *rows(about), ""]
    told = [f"| `{key}` | {RESULTS[key]} |" for key in sorted(names.RESULTS, key=list(RESULTS).index)]
    return {"annotations": _lines(parts), "results": _lines(["| annotation | meaning |", "|---|---|", *told, ""])}


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(["", *lines])


def page() -> str:
    """Return the whole of docs/reference/annotations.md, with its tables as the code has them now."""
    text = TARGET.read_text("utf-8")
    for name, table in tables().items():
        before, mark, rest = text.partition(MARK.format(name) + "\n")
        _, end, after = rest.partition(END)
        assert mark, f"docs/reference/annotations.md has no line {MARK.format(name)}"
        assert end, f"docs/reference/annotations.md has no line {END} after {MARK.format(name)}"
        text = before + mark + table + end + after
    return text


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        TARGET.write_text(page(), "utf-8")
