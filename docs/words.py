"""Write the tables of docs/words.md: every annotation, with the values that the code takes.

Usage: python -m docs.words [--print]

Which words there are, what each may say and where is read from their declarations; what a word means is told here. The
rest of the page is written by hand, around the marks.
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
TARGET: Final = ROOT / "docs" / "words.md"
MARK: Final = "<!-- written by make reference: {} -->"
END: Final = "<!-- end -->"
_HEADINGS: Final = {
    About.SET: ("A set of whole GPUs", "What the GPUs of a pod must be to each other. A part of a GPU is no set."),
    About.GPU: ("Each GPU", "Which kind of GPU, and where. For whole GPUs and for parts."),
    About.PART: ("A part of a GPU", "Each container that asks for a GPU gets such a part ([parts.md](parts.md))."),
    About.POD: ("The pod", "How the pod is placed, what NCCL is told, and when the pod ends."),
    About.GANG: ("A gang", "Pods of one job that start together or not at all ([gangs.md](gangs.md))."),
}
_NO_DEFAULT: Final = {
    names.REQUIRED: tuple(values.CONSTRAINTS),
    names.WORKLOAD: tuple(WORKLOADS),
    names.MULTI_NODE_POLICY: tuple(values.STRATEGIES),
    names.NEAR_NIC: NEAR_NIC,
}  # what may be said, and is nothing where it is not said
_FORMS: Final = {
    names.PREFERRED: "the words of `required`, best first, with commas between them",
    names.PRODUCT: "the full name as `nvidia-smi -L` gives it, or a glob",
    names.CLAIM: "a name in the pod's `resourceClaims`",
}  # where the refusal says it less well
# What each word means, after an example where it has a form and no list of values.
MEANINGS: Final[dict[str, tuple[str, str]]] = {
    names.REQUIRED: ("", "hard, or the pod waits; several with commas. `linked` and `nvlink-domain` are other names of "
        "`nvlink`, which means direct links of any vendor"),
    names.PREFERRED: ("", "the first of these that some free set meets; where none is met, any set"),
    names.REQUIRE_NVLINK: ("", "the same as `required: nvlink`"),
    names.MIN_BANDWIDTH: (
        "100GB/s",
        "hard: joined by direct links, and the weakest step of the set's best ring has at least this line rate in one "
        "direction (one link of a V100 or H100: 25; eight GPUs of an HGX H100: 450)",
    ),
    names.MIN_BUSBW: (
        "100GB/s",
        "hard: at least the all-reduce bus bandwidth that NCCL is predicted to reach on the set, over NVLink or not; "
        "of NVIDIA's GPUs alone",
    ),
    names.MAX_CROSS_NVSWITCH: ("2", "most GPUs that are outside the NVLink domain with most of the set"),
    names.PREFER_SAME_NUMA: ("", "among sets of equal bandwidth, the one on the fewest NUMA nodes"),
    names.NEAR_NIC: (
        "",
        "`required`: hard, each GPU has a NIC near it, or the pod's claim has NICs that are free and near its GPUs; "
        "`preferred`: such a set rather than an equally good one ([nic-claims.md](nic-claims.md#near-what-is-near))",
    ),
    names.STRATEGY: ("", "which of equally good places; also after a policy, as `policy: nvlink,pack`"),
    names.PRODUCT: ("NVIDIA H100*", "only GPUs of this name; upper and lower case differ"),
    names.ARCHITECTURE: ("hopper", "only GPUs of this architecture"),
    names.MIN_MEMORY: ("40Gi", "only GPUs with at least this much memory"),
    names.MIN_DRIVER: ("580.95.05", "only nodes with this driver or a later one"),
    names.MIN_CUDA: ("12.4", "only nodes whose driver knows this CUDA or a later one"),
    names.VENDOR: ("", "whose GPUs, where no limit says it; a pod's are all of one vendor ([vendors.md](vendors.md))"),
    names.SHARE: (
        "0.25", "this part of one GPU, of its memory and its compute; which GPUs may be shared the policies file says"
    ),
    names.SHARE_MEMORY: ("10Gi", "a share with this much memory; alone or with `cores`"),
    names.SHARE_CORES: ("25", "a share with this percentage of the compute; alone or with `memory`"),
    names.MIG_PROFILE: (
        "1g.10gb", "a MIG slice of this profile: one that is there, or one that is made for the pod and goes with it"
    ),
    names.GPUS: ("4", "how many GPUs, where no container has a limit"),
    names.NCCL: (
        "",
        "whether NCCL gets a topology file: where it needs one; always; always, and named by `NCCL_TOPO_FILE`; where "
        "it needs one, and the near network cards by `NCCL_IB_HCA`; never ([nccl.md](nccl.md))",
    ),
    names.WORKLOAD: ("", "what such jobs need ([what each stands for](policies.md#workloads))"),
    names.CLAIM: (
        "", "which claim by template is the GPUs, where a pod has several and no limit ([claims.md](claims.md))"
    ),
    names.PLACEMENT: (
        "", "who chooses: the controller, or the scheduler alone by attributes ([claims.md](claims.md))"
    ),
    names.WHEN_FULL: (
        "",
        "what happens when there is no place: the pod waits for one, or it goes to the scheduler, so that autoscalers "
        "see it ([claims.md](claims.md))",
    ),
    names.SPOT: (
        "",
        "whether nodes that their provider may take away at any time are better or worse, among places that are as "
        "good otherwise ([below](#nodes-that-go))",
    ),
    names.SHARED_CLAIM: (
        "duo",
        "all pods of a namespace that say this name get one set, and each uses all of it: trainer and sampler, hot "
        "standby ([claims.md](claims.md#one-set-for-several-pods))",
    ),
    names.MAX_DURATION: (
        "1h30m",
        "the pod is ended this long after its start on the node: it becomes `spec.activeDeadlineSeconds`, the smaller "
        "of the two where the pod has one. Such a pod may run on [reserved GPUs](tenants.md#reservations)",
    ),
    names.IDLE_TIMEOUT: (
        "30m",
        "after this long without work the pod is warned, then ended, where the cluster does that ([idle.md](idle.md))",
    ),
    names.GANG: ("train-1", "which pods of a namespace belong together; `auto`: those of one owner"),
    names.GANG_SIZE: ("4-8", "how many pods: with `8` all eight start; with `4-8` four may start, and others join"),
    names.MULTI_NODE_POLICY: ("", "which of equally good nodes"),
    names.MAX_NODES: ("2", "most nodes"),
    names.MIN_GPUS_PER_NODE: ("4", "fewest GPUs of the job on each node that has any"),
    names.MIN_NETWORK_BANDWIDTH: (
        "50GB/s",
        "at least this rate of the network for each node, if there are several; beyond the narrowest level of the "
        "network nothing is promised",
    ),
    names.NEAR: ("leaf", "the level of the network that holds all pods; after `preferred`, if it can"),
    names.ON_MEMBER_LOSS: ("", "when a pod is lost: another takes its place, or all pods start anew"),
}  # fmt: skip
RESULTS: Final = {
    names.ALLOCATED: "the UUIDs of the GPUs",
    names.RING_ORDER: "the indices of the GPUs on their node, in the order of the best ring",
    names.BANDWIDTH: "the rate of the slowest link of that ring in one direction, as in `min-bandwidth`; only on a pod "
    "without `busbw`, for example on AMD's GPUs, and never on Huawei's NPUs, whose link rate is not published",
    names.BUSBW: "the all-reduce bus bandwidth that NCCL should reach, as nccl-tests counts it; not for a single GPU",
    names.LEVEL: "the slowest kind of link in the ring: `nvlink`, `pcie-switch`, `pcie-root`, `numa`, `node` "
    "([compared with nvidia-smi](glossary.md#levels-beside-nvidia-smis-words))",
    names.FALLBACK: "the preferences that this set does not meet",
    names.PART: "on a pod with fractions of GPUs: compute and memory of each share, `25%/20480Mi`, or profile and "
    "first memory slice of each MIG slice, `1g.10gb@6`",
    names.RANK_HINT: "the pod's place in the order of its gang, from 0 ([gangs.md](gangs.md#what-is-written-back))",
    names.GANG_NODES: "its gang's nodes, in the order of the ranks",
    names.GANG_REACH: "what holds them together: `node`, `fabric`, a level of the network, or `cluster`",
    names.GANG_BUSBW: "all-reduce bus bandwidth predicted for the whole gang, GB/s",
    names.REASON: "why the pod waits; also an Event `WaitsForGPUs`",
    names.IDLE_END: "when the pod is ended unless its GPUs work until then; also an Event `IdleGPUs` "
    "([idle.md](idle.md))",
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
        said = str(refusal).partition("; write ")[2]
        return re.sub(r",? (?:one word, )?(?:as|and not) .*", "", said.replace("it as nvidia-smi does", "a version"))
    raise AssertionError(f"{word.key} takes everything: write in docs/words.py what it may say")


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
    yield f"| `{names.POLICY}` | `{first}` (default) | the best set that is free | |"
    said = ", ".join(f"`{one}`" for one in hard)
    yield f"| | {said} | hard: joined by NVLink, on one NUMA node, under one PCIe root; else the pod waits | |"
    yield "| | a name of the [policies file](policies.md#policies) | what an administrator wrote under that name | |"


def tables() -> dict[str, str]:
    """Return what stands between the marks of the page, by the marks' names."""
    parts: list[str] = []
    for about, (heading, lead) in _HEADINGS.items():
        head = ["| annotation | values | meaning | in policies |", "|---|---|---|---|"]
        parts += [f"### {heading}", "", lead, "", *head, *rows(about), ""]
    told = [f"| `{key}` | {RESULTS[key]} |" for key in sorted(names.RESULTS, key=list(RESULTS).index)]
    return {"words": _lines(parts), "results": _lines(["| annotation | meaning |", "|---|---|", *told, ""])}


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(["", *lines])


def page() -> str:
    """Return the whole of docs/words.md, with its tables as the code has them now."""
    text = TARGET.read_text("utf-8")
    for name, table in tables().items():
        before, mark, rest = text.partition(MARK.format(name) + "\n")
        _, end, after = rest.partition(END)
        assert mark, f"docs/words.md has no line {MARK.format(name)}"
        assert end, f"docs/words.md has no line {END} after {MARK.format(name)}"
        text = before + mark + table + end + after
    return text


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        TARGET.write_text(page(), "utf-8")
