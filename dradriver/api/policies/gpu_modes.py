"""How the policies hand out a GPU: whole, in shares or in MIG slices. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dradriver.api.policies.fields import Gpus, MigWord, SharedWord
from dradriver.api.policies.policy_sections import GpuRule, Policies
from dradriver.topology.machine import Gpu
from dradriver.topology.vendors import VENDORS


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """How a GPU is handed out: whole, in shares or in MIG slices.

    The fields are those of ``GpuRule``, a rule of the policies file, with all defaults applied. ``equal_shares`` is 0
    if shares can have any size. ``dev_shm_mib`` is 0 for the default size.
    """

    mig: MigWord = "off"
    shared: SharedWord = "none"
    memory_overcommit: float = 1.0
    equal_shares: int = 0
    exclusive_to: Literal["", "namespace"] = ""
    dev_shm_mib: int = 0
    fractions_only: bool = False

    @property
    def form(self) -> tuple[MigWord, SharedWord, int, bool]:
        """Return the settings of a GPU that cannot change while a claim uses the GPU.

        They are the MIG mode, the sharing, the number of equal shares, and ``fractions_only``. The last one is always
        False unless each MIG placement is published as a device. Only then does ``fractions_only`` decide whether the
        whole GPU is a device, too. This device must not disappear while a claim uses it.
        """
        return self.mig, self.shared, self.equal_shares, self.fractions_only and self.mig == "placements"

    @property
    def whole(self) -> bool:
        """Return whether the GPU is only handed out as a whole."""
        return self.mig == "off" and self.shared == "none"


def mode_of(policies: Policies, *, node: str, labels: Mapping[str, str], gpu: Gpu) -> Mode | None:
    """Return how a GPU is handed out: by the first rule that fits, else as a whole.

    GPUs of a vendor without fractions are always handed out whole. If no rule mentions MIG, a GPU in MIG mode is
    ``static``: its existing instances are handed out, because it cannot be handed out whole.

    Args:
        policies: The policies in force.
        node: The name of the GPU's node.
        labels: The node's labels.
        gpu: The GPU as it is now.

    Returns:
        None if the policies are not known, or if it is not certain which rule fits. The caller then keeps the GPU's
        present mode and its published devices.
    """
    if not policies.known:  # the policies file was bad when the process started
        return None
    if not VENDORS[gpu.vendor].parts:
        return Mode()
    rule, is_sure = _first_fitting_rule(policies, node, labels, gpu)
    if not is_sure:
        return None
    default_mig: MigWord = "off" if gpu.mig is None else "static"  # ``gpu.mig`` is None if MIG mode is off
    if rule is None:
        return Mode(mig=default_mig)
    return Mode(
        # A shared GPU cannot be in MIG mode.
        mig=rule.mig or (default_mig if rule.shared == "none" else "off"),
        shared=rule.shared,
        memory_overcommit=rule.memory_overcommit,
        equal_shares=rule.equal_shares or 0,
        exclusive_to=rule.exclusive_to,
        dev_shm_mib=rule.dev_shm_mib or 0,
        fractions_only=rule.fractions_only,
    )


def uncut(policies: Policies, *, node: str, labels: Mapping[str, str], gpu: Gpu) -> bool:
    """Return whether a rule would divide this GPU, but its vendor supports no shares or slices.

    The rule then has no effect on the GPU, and the caller can warn about it. ``node`` and ``labels`` are the name and
    the labels of the GPU's node.
    """
    rule, _ = (None, True) if VENDORS[gpu.vendor].parts else _first_fitting_rule(policies, node, labels, gpu)
    return rule is not None and (rule.mig not in ("", "off") or rule.shared != "none")


def _first_fitting_rule(
    policies: Policies, node: str, labels: Mapping[str, str], gpu: Gpu
) -> tuple[GpuRule | None, bool]:
    """Return the first rule that fits a GPU, or None, and whether that is certain.

    It is not certain if an earlier rule names GPUs by slot number, and the GPU's slot in the machine is unknown.
    ``node`` and ``labels`` are the name and the labels of the GPU's node.
    """
    for rule in policies.gpus:
        is_fit = fits(rule, node, labels, gpu)
        if is_fit is not False:
            return (rule, True) if is_fit else (None, False)
    return None, True


def fits(rule: Gpus, node: str, labels: Mapping[str, str], gpu: Gpu) -> bool | None:
    """Return whether a policy rule for GPUs applies to a GPU of a node with these labels.

    None if the rule names GPUs by slot number, and the GPU's slot in the machine is unknown.
    """
    if not on_node(rule, node, labels) or (rule.products and not gpu.of_product(rule.products)):
        return False
    return rule.names(gpu) if rule.names_gpus else True


def on_node(rule: Gpus, node: str, labels: Mapping[str, str]) -> bool:
    """Return whether the nodes that a rule selects include this node, by its name and labels.

    Args:
        rule: The rule of the policies file.
        node: The node's name.
        labels: The node's labels.
    """
    return (not rule.nodes or node in rule.nodes) and all(
        labels.get(key) == value for key, value in rule.node_selector.items()
    )
