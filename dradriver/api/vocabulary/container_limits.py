"""Container limits that other drivers of the field gave a meaning: what they ask for, in our words.

=====================================================  =================================================================
``nvidia.com/gpu``                                     whole GPUs; beside an amount, the one that it is a share of
``nvidia.com/gpu.<product>``                           whole GPUs of one product, by its name as GPU feature discovery
                                                       spells it, with or without what stands before it:
                                                       ``NVIDIA-A100-SXM4-40GB``, ``A100-SXM4-40GB``
``nvidia.com/mig-<profile>``                           MIG slices (NVIDIA's device plugin; a ``+`` is written as ``.``)
``nvidia.com/gpumem``, ``nvidia.com/gpu-memory``       memory in MiB (HAMi)
``nvidia.com/gpucores``                                percent of a GPU's compute (HAMi)
``aliyun.com/gpu-mem``                                 memory in GiB; from 1024 on, which no GPU has, in MiB, for its
                                                       device plugin knows both (``--memory-unit``)
``aliyun.com/gpu-core``, ``…gpu-core.percentage``      percent of a GPU's compute
``amd.com/gpu``                                        whole GPUs of AMD (ROCm's device plugin)
``huawei.com/npu``                                     whole Ascend NPUs
``huawei.com/Ascend910``, ``…310P``, ``…310``          those of one family (mind-cluster's device plugin)
``huawei.com/Ascend910B3``, ``…910A``, ``…910C``, …    those of one product (HAMi)
=====================================================  =================================================================

Memory from 1Mi on is bytes, whatever the unit (``10Gi``): no GPU has a tebibyte. Some that cannot be had say why:
``nvidia.com/vgpu``; ``….shared``, a time slice of a size that only the device plugin's configuration has
(k8s-device-plugin, ``sharing.timeSlicing.renameByDefault``); ``nvidia.com/gpumem-percentage`` (HAMi), for a share's
memory is asked for before anybody knows of which GPU; and ``huawei.com/Ascend910B3-memory`` and the like (HAMi), for
there are no shares of NPUs. Left on the pod they would keep it from every node. Partitions of AMD's GPUs
(``amd.com/cpx_nps4``) and other shares of NPUs (``huawei.com/Ascend910-4c``, vNPUs) are left to their device plugins,
and say why to a pod that asks for nothing else and has a word of ours.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from dradriver.allocator.request import Amount
from dradriver.api.base import names, quantity
from dradriver.api.base.errors import WordError
from dradriver.api.vocabulary import messages, values
from dradriver.api.vocabulary.container_requests import Asked, described
from dradriver.api.vocabulary.values import MOST_GPUS
from dradriver.topology.vendors import AMD, ASCEND, NVIDIA, VENDORS

_MIG: Final = "nvidia.com/mig-"
_OF_PRODUCT: Final = names.GPU_RESOURCE + "."
_SHARED_SUFFIX: Final = ".shared"
_VGPU: Final = "nvidia.com/vgpu"
_PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
_MEMORY: Final = {"nvidia.com/gpumem": 1, "nvidia.com/gpu-memory": 1, "aliyun.com/gpu-mem": 1024}  # MiB a workload
_CORES: Final = ("nvidia.com/gpucores", "aliyun.com/gpu-core", "aliyun.com/gpu-core.percentage")
_ASCEND: Final = "huawei.com/Ascend"
_NPU_MEMORY: Final = re.compile(re.escape(_ASCEND) + ".*-memory")
# Products as machines name them (``Ascend 910B3``); HAMi's names are those of its device-configmap.yaml.
_PRODUCTS: Final = {
    **{f"{_ASCEND}{chip}": f"*{chip}" for chip in ("910A", "910B2", "910B3", "910B4", "910B4-1", "910C", "310")},
    f"{_ASCEND}910": "*910*",
    f"{_ASCEND}310P": "*310P*",
}
_VENDOR_OF_RESOURCE: Final = {
    **{name: vendor.word for vendor in VENDORS.values() if vendor is not NVIDIA for name in vendor.resources},
    **dict.fromkeys(_PRODUCTS, ASCEND.word),
}
"""Whose whole GPUs a resource is, where it is not NVIDIA's."""
NAMES: Final = frozenset((names.GPU_RESOURCE, *_MEMORY, *_CORES, *_VENDOR_OF_RESOURCE))
WHOLE: Final = frozenset((names.GPU_RESOURCE, *_VENDOR_OF_RESOURCE))
"""Resources that are whole GPUs, whatever product."""
_NAME_OF_LOWER_CASE: Final = {name.lower(): name for name in sorted(NAMES)}
_RESOURCES_OF_DOMAIN: Final = {
    domain: [name.partition("/")[2] for name in _NAME_OF_LOWER_CASE if name.startswith(f"{domain}/")]
    for domain in dict.fromkeys(name.partition("/")[0] for name in _NAME_OF_LOWER_CASE)
}
_PATTERN_OF_FORM: Final = {
    f"{_OF_PRODUCT}<product>": re.compile(r"nvidia\.com/gpu[-_](?!mem|core)"),
    f"{_MIG}<profile>": re.compile(r"nvidia\.com/mig[-_.]?[0-9]"),
}
_PLAIN: Final = re.compile(r"[0-9]{1,4}", re.ASCII)
_BYTES: Final = 1 << 20  # from here on a memory's number is bytes
MOST_UNREAD: Final = 64
_LONGEST: Final = 64  # characters of a name that are shown, or compared
_MIN_SIMILARITY: Final = 0.8  # of 1: gpus has 0.86 of gpu, Ascend 0.8 of Ascend910, dpu 0.67 of npu
_MIN_DOMAIN_SIMILARITY: Final = 0.85  # nvdia.com has 0.95 of nvidia.com, baidu.com 0.71 of amd.com
_GIB: Final = 1024  # up to here a number of GiB


def is_ours(resource: str) -> bool:
    """Return whether a container limit is one of GPUs or parts of them that a claim replaces."""
    return resource in NAMES or resource.startswith((_MIG, _OF_PRODUCT))


def says_which(resource: str) -> bool:
    """Return whether a container limit says which kind of GPU it is for."""
    return resource in _VENDOR_OF_RESOURCE or resource.startswith(_OF_PRODUCT)


def some(limits: Mapping[str, object]) -> bool:
    """Return whether container limits ask for any GPUs or parts of them; ``0`` and ``0.0`` do not."""
    return any(is_ours(name) and _is_some(str(value)) for name, value in limits.items())


def _is_some(text: str) -> bool:
    return int(text) > 0 if _PLAIN.fullmatch(text) else (_exact(text) or 0) > 0


def vendor(where: str, limits: Mapping[str, object]) -> str:
    """Return whose GPUs container limits ask for; empty if they ask for none.

    Raises:
        WordError: Two vendors'.
    """
    if _VENDOR_OF_RESOURCE.keys().isdisjoint(limits):
        return NVIDIA.word if some(limits) else ""
    found = {_VENDOR_OF_RESOURCE.get(name, NVIDIA.word): name for name in sorted(limits) if some({name: limits[name]})}
    if len(found) > 1:
        told = " and ".join(f"{name} ({word})" for word, name in found.items())
        raise WordError(f"{where}: {told}: all GPUs of a pod are of one vendor; use several pods")
    return next(iter(found), "")


def product(where: str, limits: Mapping[str, object]) -> str:
    """Return which product container limits name, as the annotation ``product`` would say it; empty for any.

    GPU feature discovery drops what labels cannot hold and writes ``-`` for blanks (``sanitise`` of k8s-device-plugin's
    ``internal/lm``): a ``-`` may be either here.

    Raises:
        WordError: Two of them, or a name that no product has.
    """
    gpu_limits = [name for name, text in limits.items() if is_ours(name) and _is_some(str(text))]
    products = [name.removeprefix(_OF_PRODUCT) for name in gpu_limits if _names_product(name)]
    products += [_PRODUCTS[name] for name in gpu_limits if name in _PRODUCTS]
    if len(products) > 1:
        raise WordError(f"{where}: {', '.join(map(messages.shown, sorted(products)))}: two products; use several pods")
    if not products or products[0] in _PRODUCTS.values():
        return "".join(products)
    # A name without the vendor matches after any prefix. A ``-`` in the limit is a ``-`` or a blank in the product.
    glob = ("" if products[0].startswith("NVIDIA-") else "*") + products[0].replace("-", "[ -]")
    if values.product(glob) is None:
        raise messages.is_no(where, _OF_PRODUCT + products[0], messages.PRODUCT_RESOURCE)
    return glob


def _names_product(resource: str) -> bool:
    return resource.startswith(_OF_PRODUCT) and not resource.endswith(_SHARED_SUFFIX)


def refuse_unread(limits: Iterable[tuple[str, str, object]]) -> None:
    """Raise if a container limit was meant to ask for GPUs and does not, with what to write instead.

    Args:
        limits: Each with its place in words, for errors (``container 'main': limits``), its name and its value. No more
            than ``MOST_UNREAD`` are looked at: what names are alike takes long to tell.

    Raises:
        WordError: A part of a GPU that is not handed out, a product without a limit of its own, or nearly a known name.
    """
    for where, name, value in itertools.islice(limits, MOST_UNREAD):
        if is_ours(name) or not _is_some(str(value)):
            continue
        if why := _why_unread(name):
            raise WordError(f"{where} {name[:_LONGEST]}: {messages.shown(str(value))}: {why}")


def _why_unread(name: str) -> str:
    """Return why a container limit is not read, and what to write.

    It is empty if the limit may mean something else than GPUs.

    The causes are tried from certain to vague: other letter case, limits of vendors that the driver does not read, then
    names that are similar to a known limit.
    """
    lower_name = name[:_LONGEST].lower()
    if lower_name in _NAME_OF_LOWER_CASE:
        return _did_you_mean(_NAME_OF_LOWER_CASE[lower_name])

    # Limits of the vendors' device plugins: ``offered`` has the prefixes of those for fractions, or for one product.
    if name.startswith(AMD.offered):
        write_whole = f"write {AMD.resources[0]}"
        if name.startswith(AMD.offered[0]):  # amd.com/spx_…: a GPU in one partition
            return f"whole GPUs, whose limit has another name here: {write_whole}"
        return f"a partition of a GPU, which this driver does not hand out: {write_whole}: 1 for a whole one"
    if name.startswith(ASCEND.offered):
        if "-" in name.partition("/")[2]:  # huawei.com/Ascend910-4c
            return (
                f"a share of an NPU, which this driver does not hand out: write {_whole_npu_limit(name)}: 1 for a "
                "whole one"
            )
        product = name.removeprefix(_ASCEND)
        if product and values.product(f"*{product}") is not None:
            npu = ASCEND.resources[0]
            return (
                f"no product that has a limit of its own: write {npu} and {names.PRODUCT}: '*{product[:_LONGEST]}', or "
                f"one of {', '.join(sorted(limit for limit in NAMES if limit.startswith(_ASCEND)))}"
            )

    # A misspelled domain, if the resource is right with the domain that was meant.
    domain, _, resource = lower_name.partition("/")
    domains = difflib.get_close_matches(domain, _RESOURCES_OF_DOMAIN, n=1, cutoff=_MIN_DOMAIN_SIMILARITY)
    if domains and domain != domains[0]:
        meant = f"{domains[0]}/{resource}"
        meant = _NAME_OF_LOWER_CASE.get(meant, meant)
        return _did_you_mean(meant) if is_ours(meant) else ""

    # A misspelled resource of a right domain.
    similar_names = difflib.get_close_matches(
        resource, _RESOURCES_OF_DOMAIN.get(domain, ()), n=1, cutoff=_MIN_SIMILARITY
    )
    if similar_names:
        return _did_you_mean(_NAME_OF_LOWER_CASE[f"{domain}/{similar_names[0]}"])
    return next((_did_you_mean(form) for form, pattern in _PATTERN_OF_FORM.items() if pattern.match(lower_name)), "")


def _did_you_mean(meant: str) -> str:
    domain = meant.partition("/")[0]
    known = sorted(one for one in (*NAMES, *_PATTERN_OF_FORM) if one.startswith(domain))
    return f"no limit of GPUs (did you mean {meant}?); known are {', '.join(known)}"


def _whole_npu_limit(name: str) -> str:
    """Return the limit of whole NPUs for one of parts of them: ``huawei.com/Ascend910`` for ``…910-4c``."""
    whole = name.removesuffix("-memory")
    whole = whole if is_ours(whole) else whole.partition("-")[0]
    return whole if is_ours(whole) else ASCEND.resources[0]


def asked(where: str, limits: Mapping[str, object]) -> Asked:
    """Return what a container's limits request: a number of GPUs, a share, or MIG profiles; 0 for nothing.

    Args:
        where: The place in words, for errors: ``container 'main': limits``.
        limits: All the container's limits, as text or numbers.

    Raises:
        WordError: An odd value, limits that contradict each other or are of two vendors, or vGPU.
    """
    gpu_limits = {
        name: str(value)
        for name, value in limits.items()
        if is_ours(name) or name.startswith((_VGPU, _PERCENTAGE)) or _NPU_MEMORY.fullmatch(name)
    }
    if not gpu_limits:
        return 0

    # Limits of other projects that this driver does not serve: name the replacement.
    for name, text in gpu_limits.items():
        if name.startswith(_VGPU):
            raise WordError(
                f"{where} {name}: {messages.shown(text)}: vGPU is for virtual machines and needs NVIDIA's licence "
                f"server; write {names.SHARE}: 0.5 for a share of a GPU, or {names.MIG_PROFILE}: 1g.10gb for a slice"
            )
        if name == _PERCENTAGE and _exact(text) != 0:
            raise WordError(
                f"{where} {name}: {messages.shown(text)}: a share's memory is asked for in MiB, as nvidia.com/gpumem: "
                f"8192; for the same part of memory and compute write {names.SHARE}: 0.5"
            )
        if _NPU_MEMORY.fullmatch(name) and _exact(text) != 0:
            raise WordError(
                f"{where} {name}: {messages.shown(text)}: a share of an NPU, which this driver does not hand out; "
                f"write {_whole_npu_limit(name)}: 1 for a whole one"
            )
        if name.endswith(_SHARED_SUFFIX):
            raise WordError(
                f"{where} {name}: {messages.shown(text)}: only a device plugin's configuration says how much "
                f"of a GPU that is; write {names.SHARE}: 0.25 beside a limit {names.GPU_RESOURCE}: 1"
            )
    if not _VENDOR_OF_RESOURCE.keys().isdisjoint(gpu_limits):
        vendor(where, gpu_limits)  # raises if there are two vendors

    # A container has one kind: whole GPUs, MIG profiles, or a share. A share may repeat the one GPU that it is of.
    gpus = _whole_gpus(where, gpu_limits)
    profiles = _profiles(where, gpu_limits)
    amount = _share_amount(where, gpu_limits)
    if amount is None:
        if profiles and gpus:
            raise _contradiction(where, profiles, described(gpus))
        return profiles or gpus
    if profiles:
        raise _contradiction(where, profiles, described(amount))
    if gpus > 1:
        raise WordError(
            f"{where} {names.GPU_RESOURCE}: {gpus} contradicts {described(amount)}: a container's share is of one "
            f"GPU; write {names.GPU_RESOURCE}: 1, or leave it out"
        )
    return amount


def _contradiction(where: str, profiles: tuple[str, ...], other: str) -> WordError:
    return WordError(f"{where}: {described(profiles)} contradicts {other}; write one of the two")


def _share_amount(where: str, gpu_limits: Mapping[str, str]) -> Amount | None:
    memory = {mib for name in _MEMORY if (mib := _memory_mib(where, name, gpu_limits))}
    cores = {percent for name in _CORES if (percent := _number(where, name, gpu_limits))}
    for several, kind in ((memory, "memory"), (cores, "compute")):
        if len(several) > 1:
            raise WordError(f"{where}: several limits on a GPU's {kind} contradict each other; write one of them")
    if not memory and not cores:
        return None
    percent = max(cores, default=0)
    if percent > 100:
        name = next(name for name in _CORES if name in gpu_limits)
        raise messages.is_no(f"{where} {name}", gpu_limits[name], messages.CORES)
    return Amount(percent, max(memory, default=0))


def _whole_gpus(where: str, gpu_limits: Mapping[str, str]) -> int:
    """Return the number of whole GPUs: of any, or of a product, beside which some clusters write the same of any."""
    numbers = {name: _number(where, name, gpu_limits) for name in gpu_limits if name in WHOLE or _names_product(name)}
    if len({number for number in numbers.values() if number}) > 1:
        told = ", ".join(f"{name}: {number}" for name, number in sorted(numbers.items()))
        raise WordError(f"{where}: {told} contradict each other; write one of them")
    return max(numbers.values(), default=0)


def _profiles(where: str, gpu_limits: Mapping[str, str]) -> tuple[str, ...]:
    profiles: list[str] = []
    for name in sorted(name for name in gpu_limits if name.startswith(_MIG)):
        written, gb, rest = name.removeprefix(_MIG).partition("gb")
        profile = values.mig_profile(written + gb + ("+" + rest[1:] if rest.startswith(".") else rest))
        if profile is None:
            raise messages.is_no(f"{where}", name, messages.MIG_RESOURCE)
        number = _number(where, name, gpu_limits)
        if number + len(profiles) > MOST_GPUS:
            raise messages.is_no(f"{where} {name}", gpu_limits[name], messages.GPUS)
        profiles += [profile] * number
    return tuple(profiles)


def _number(where: str, name: str, gpu_limits: Mapping[str, str]) -> int:
    """Return the whole number that the limit of this name says, 0 where there is no such limit."""
    text = gpu_limits.get(name, "0")
    if text.isascii() and text.isdigit() and len(text) <= 4:
        return int(text)
    value = _exact(text)
    if value is None or value.denominator != 1 or not 0 <= value <= 10**6:
        what = messages.CORES if name in _CORES else messages.GPUS
        raise messages.is_no(f"{where} {name}", text, what)
    return int(value)


def _memory_mib(where: str, name: str, gpu_limits: Mapping[str, str]) -> int:
    text = gpu_limits.get(name)
    if text is None:
        return 0
    value = _exact(text)
    if value is None or value < 0:
        raise messages.is_no(f"{where} {name}", text, messages.MEMORY)
    mib = math.ceil(value / _BYTES if value >= _BYTES else value * (1 if value >= _GIB else _MEMORY[name]))
    if mib > values.MOST_MEMORY_MIB:
        raise messages.is_no(f"{where} {name}", text, messages.MEMORY)
    return mib


def _exact(text: str) -> Fraction | None:
    try:
        return quantity.exact(text)
    except WordError:
        return None
