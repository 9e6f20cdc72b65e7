"""Near misses of the driver's prefix: told, and those of others left alone."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from dradriver.api.pod import misspelled
from dradriver.api.vocabulary import annotation_words

MISSES = {
    "gpu-topology": "gpu.topology/policy",
    "gpu.topology": "gpu.topology/policy",
    "gpu.topologi/policy": "gpu.topology/policy",
    "gpu.topolgy/polcy": "gpu.topology/policy",
    "gpu-topology/min-bandwith": "gpu.topology/min-bandwidth",
    "gputopology/gpus": "gpu.topology/gpus",
    "GPU.topology/gpus": "gpu.topology/gpus",
    "gpu.topology.policy": "gpu.topology/policy",
    "gpu-topology-policy": "gpu.topology/policy",
    "gpu.topology.io/policy": "gpu.topology/policy",
    "gpu-topology.example.org/required": "gpu.topology/required",
    "gpu-topology.exmaple.com/preferred": "gpu.topology/preferred",
    "gpus.topology/share": "gpu.topology/share",
    "gup.topology/share": "gpu.topology/share",
}
OTHERS = (
    *annotation_words.KEYS,
    *names.NOTES,
    *names.FORMER_RESULTS,
    "gpu.topology/unknown",  # refused, not warned of
    "gpu-topology.example.com/required",
    "gpu-topology.example.com/anything",
    "gpu-topology.other.org/colour",
    "nvidia.com/gpu",
    "nvidia.com/gpu.product",
    "gpu.nvidia.com/model",
    "gpu.intel.com/tiles",
    "amd.com/gpu.topology",
    "topology.kubernetes.io/zone",
    "topology.gke.io/zone",
    "topology.k8s.aws/network-node-layer-1",
    "cloud.google.com/gke-tpu-topology",
    "cloud.google.com/gke-gpu-topology",
    "kueue.x-k8s.io/podset-required-topology",
    "leaderworkerset.sigs.k8s.io/exclusive-topology",
    "cpu.topology/policy",
    "tpu-topology",
    "npu-topology",
    "volcano.sh/policy",
    "policy",
    "topology",
    "gpu",
    "gpus",
    "",
    "/",
    "gpu-topology/" + "x" * 64,
    "gpu-topology\n/policy",
)


@pytest.mark.parametrize(("key", "meant"), MISSES.items())
def test_a_near_miss_is_told_with_what_was_meant(key: str, meant: str) -> None:
    (told,) = misspelled.warnings([key])
    assert told == (
        f"{key}: nothing reads this annotation. The driver's annotations begin with gpu.topology/ (did you mean "
        f"{meant}?)."
    )


@pytest.mark.parametrize("key", OTHERS)
def test_our_words_and_those_of_others_are_left_alone(key: str) -> None:
    assert not [*misspelled.warnings([key])]


def test_words_among_labels_are_told_and_our_label_and_short_names_are_not() -> None:
    told = [*misspelled.warnings([], [names.POLICY, "gpu.topologi/policy", names.LABEL, "gpu-topology", "app", "gpu"])]
    assert [text.partition(":")[0] for text in told] == ["label gpu.topology/policy", "label gpu.topologi/policy"]
    assert all("The driver reads annotations" in text for text in told)


def test_as_many_keys_are_looked_at_as_a_pod_has() -> None:
    keys = [f"gpu.topologi/word-{i}" for i in range(10_000)]
    assert len([*misspelled.warnings(keys, keys)]) == 2 * misspelled.MOST_KEYS
