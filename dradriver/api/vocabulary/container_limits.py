"""Reads the container limits that request GPUs, in the notation of this driver and of other drivers.

=====================================================  =================================================================
``nvidia.com/gpu``                                     whole GPUs; next to an amount: the GPU that the share is on
``nvidia.com/gpu.<product>``                           whole GPUs of one product, by its name as GPU feature discovery
                                                       writes it, with or without its prefix:
                                                       ``NVIDIA-A100-SXM4-40GB``, ``A100-SXM4-40GB``
``nvidia.com/mig-<profile>``                           MIG slices (NVIDIA's device plugin; a ``+`` is written as ``.``)
``nvidia.com/gpumem``, ``nvidia.com/gpu-memory``       memory in MiB (HAMi)
``nvidia.com/gpucores``                                percent of a GPU's compute (HAMi)
``aliyun.com/gpu-mem``                                 memory in GiB; in MiB from 1024 on, because no GPU has 1024 GiB
                                                       and its device plugin knows both units (``--memory-unit``)
``aliyun.com/gpu-core``, ``…gpu-core.percentage``      percent of a GPU's compute
``amd.com/gpu``                                        whole GPUs of AMD (ROCm's device plugin)
``huawei.com/npu``                                     whole Ascend NPUs
``huawei.com/Ascend910``, ``…310P``, ``…310``          whole NPUs of one family (mind-cluster's device plugin)
``huawei.com/Ascend910B3``, ``…910A``, ``…910C``, …    whole NPUs of one product (HAMi)
=====================================================  =================================================================

The webhook calls it. If the value of a memory limit is 1Mi (1048576) or more, it is in bytes. So ``10Gi`` means 10 GiB
in each of these limits. A smaller value cannot be in bytes, and no GPU has 1048576 MiB of memory.

Some limits are refused with the reason. If they stayed on the pod, no node would fit:

- ``nvidia.com/vgpu``
- ``….shared``: a time slice whose size only the device plugin's configuration knows (k8s-device-plugin,
  ``sharing.timeSlicing.renameByDefault``)
- ``nvidia.com/gpumem-percentage`` (HAMi): a share's memory is requested before its GPU is known
- ``huawei.com/Ascend910B3-memory`` and similar ones (HAMi): there are no shares of NPUs

Partitions of AMD's GPUs (``amd.com/cpx_nps4``) and other shares of NPUs (``huawei.com/Ascend910-4c``, vNPUs) are left
to their device plugins. They are refused only on a pod that has an annotation of this driver and requests no other
GPUs or NPUs.
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
    """Return whether this driver allocates what a container limit of this name requests.

    The driver then replaces the limit by a claim for GPUs or fractions.
    """
    return resource in NAMES or resource.startswith((_MIG, _OF_PRODUCT))


def says_which(resource: str) -> bool:
    """Return whether a limit's name says which GPUs: a product, or a vendor other than NVIDIA.

    Args:
        resource: The limit's name.
    """
    return resource in _VENDOR_OF_RESOURCE or resource.startswith(_OF_PRODUCT)


def some(limits: Mapping[str, object]) -> bool:
    """Return whether container limits request any GPUs or fractions; ``0`` and ``0.0`` do not."""
    return any(is_ours(name) and _is_some(str(value)) for name, value in limits.items())


def _is_some(text: str) -> bool:
    return int(text) > 0 if _PLAIN.fullmatch(text) else (_exact(text) or 0) > 0


def vendor(container: str, limits: Mapping[str, object]) -> str:
    """Return the vendor of the GPUs that container limits request; empty without such limits.

    Raises:
        WordError: The limits are for GPUs of two vendors. The message begins with ``container``, such as ``container
            'main'``.
    """
    if _VENDOR_OF_RESOURCE.keys().isdisjoint(limits):
        return NVIDIA.word if some(limits) else ""
    found = {_VENDOR_OF_RESOURCE.get(name, NVIDIA.word): name for name in sorted(limits) if some({name: limits[name]})}
    if len(found) > 1:
        limits_text = " and ".join(f"{name} ({word})" for word, name in found.items())
        raise WordError(
            f"{container}: {limits_text}. All GPUs of a pod must be of one vendor. Use one pod for each vendor."
        )
    return next(iter(found), "")


def product(container: str, limits: Mapping[str, object]) -> str:
    """Return the product that container limits name, as a value of the annotation ``product``.

    Empty if they name none. The name in a limit is written by GPU feature discovery, which drops characters that labels
    cannot have and writes ``-`` for blanks (``sanitise`` of k8s-device-plugin's ``internal/lm``). So in the returned
    pattern a ``-`` of the limit also matches a blank.

    Args:
        container: The place for errors: ``container 'main': limits``.
        limits: All limits of the container.

    Raises:
        WordError: The limits name two products, or a name that is impossible for a product.
    """
    gpu_limits = [name for name, text in limits.items() if is_ours(name) and _is_some(str(text))]
    products = [name.removeprefix(_OF_PRODUCT) for name in gpu_limits if _names_product(name)]
    products += [_PRODUCTS[name] for name in gpu_limits if name in _PRODUCTS]
    if len(products) > 1:
        raise WordError(
            f"{container}: the limits name {len(products)} products: "
            f"{', '.join(map(messages.shown, sorted(products)))}. All GPUs of a pod must be of one product. Use one "
            f"pod for each product."
        )
    if not products or products[0] in _PRODUCTS.values():
        return "".join(products)
    # A name without the vendor matches after any prefix. A ``-`` in the limit is a ``-`` or a blank in the product.
    glob = ("" if products[0].startswith("NVIDIA-") else "*") + products[0].replace("-", "[ -]")
    if values.product(glob) is None:
        raise messages.is_not(container, _OF_PRODUCT + products[0], messages.PRODUCT_RESOURCE)
    return glob


def _names_product(resource: str) -> bool:
    return resource.startswith(_OF_PRODUCT) and not resource.endswith(_SHARED_SUFFIX)


def refuse_unread(limits: Iterable[tuple[str, str, object]]) -> None:
    """Raise if a container limit seems to request GPUs but is not one that the driver reads.

    The message says what to write instead.

    Args:
        limits: For each limit its place for errors (``container 'main': limits``), its name and its value. At most
            ``MOST_UNREAD`` are checked, because the search for similar names is slow.

    Raises:
        WordError: A limit is for a fraction that is not supported, or for a product that has no limit of its own. Or
            its name is similar to the name of a known limit.
    """
    for container, name, value in itertools.islice(limits, MOST_UNREAD):
        if is_ours(name) or not _is_some(str(value)):
            continue
        if why := _why_unread(name):
            raise WordError(f"{container} {name[:_LONGEST]}: {messages.shown(str(value))}: {why}")


def _why_unread(name: str) -> str:
    """Return why the driver does not read a container limit, and what to write instead.

    Empty if the limit may be for something else than GPUs. The causes are tried from certain to vague: another letter
    case, limits of vendors that the driver does not read, then names that are similar to a known limit.
    """
    lower_name = name[:_LONGEST].lower()
    if lower_name in _NAME_OF_LOWER_CASE:
        return _did_you_mean(_NAME_OF_LOWER_CASE[lower_name])

    # Limits of the vendors' device plugins: ``offered`` has the prefixes of those for fractions, or for one product.
    if name.startswith(AMD.offered):
        write_whole = f"Write {AMD.resources[0]}"
        if name.startswith(AMD.offered[0]):  # amd.com/spx_…: a GPU in one partition
            return f"this driver uses another name for the limit of whole GPUs. {write_whole}."
        return f"this driver does not allocate partitions of a GPU. {write_whole}: 1 for a whole GPU."
    if name.startswith(ASCEND.offered):
        if "-" in name.partition("/")[2]:  # huawei.com/Ascend910-4c
            return f"this driver does not allocate shares of an NPU. Write {_whole_npu_limit(name)}: 1 for a whole NPU."
        product = name.removeprefix(_ASCEND)
        if product and values.product(f"*{product}") is not None:
            npu = ASCEND.resources[0]
            return (
                f"this product has no limit of its own. Write {npu} and the annotation {names.PRODUCT}: "
                f"'*{product[:_LONGEST]}', or write one of: "
                f"{', '.join(sorted(limit for limit in NAMES if limit.startswith(_ASCEND)))}."
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
    return f"this is not a known GPU limit (did you mean {meant}?). Known limits: {', '.join(known)}."


def _whole_npu_limit(name: str) -> str:
    """Return the name of the limit for whole NPUs that belongs to a limit for part of one.

    For example, ``huawei.com/Ascend910`` for ``huawei.com/Ascend910-4c``. An NPU is an accelerator of Ascend.
    """
    whole = name.removesuffix("-memory")
    whole = whole if is_ours(whole) else whole.partition("-")[0]
    return whole if is_ours(whole) else ASCEND.resources[0]


def asked(container: str, limits: Mapping[str, object]) -> Asked:
    """Return what a container's limits request: a number of GPUs, a share, or MIG profiles; 0 for nothing.

    Args:
        container: The place for errors: ``container 'main': limits``.
        limits: All limits of the container, as text or numbers.

    Raises:
        WordError: A value is invalid, limits contradict each other or are of two vendors, or a limit is for vGPU.
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
                f"{container} {name}: {messages.shown(text)}: vGPUs are for virtual machines and need NVIDIA's licence "
                f"server. Write the annotation {names.SHARE}: 0.5 for a share of a GPU, or {names.MIG_PROFILE}: "
                f"1g.10gb for a MIG slice."
            )
        if name == _PERCENTAGE and _exact(text) != 0:
            raise WordError(
                f"{container} {name}: {messages.shown(text)}: a share's memory is written in MiB, for example "
                f"nvidia.com/gpumem: 8192. For the same fraction of memory and compute, write the annotation "
                f"{names.SHARE}: 0.5."
            )
        if _NPU_MEMORY.fullmatch(name) and _exact(text) != 0:
            raise WordError(
                f"{container} {name}: {messages.shown(text)}: this driver does not allocate shares of an NPU. Write "
                f"{_whole_npu_limit(name)}: 1 for a whole NPU."
            )
        if name.endswith(_SHARED_SUFFIX):
            raise WordError(
                f"{container} {name}: {messages.shown(text)}: the fraction that this limit stands for is known only to "
                f"the configuration of a device plugin. Write the limit {names.GPU_RESOURCE}: 1 and the annotation "
                f"{names.SHARE}: 0.25."
            )
    if not _VENDOR_OF_RESOURCE.keys().isdisjoint(gpu_limits):
        vendor(container, gpu_limits)  # raises if there are two vendors

    # A container has one kind: whole GPUs, MIG profiles, or a share. A share may repeat the one GPU that it is of.
    gpus = _whole_gpus(container, gpu_limits)
    profiles = _profiles(container, gpu_limits)
    amount = _share_amount(container, gpu_limits)
    if amount is None:
        if profiles and gpus:
            raise _contradiction(container, profiles, described(gpus))
        return profiles or gpus
    if profiles:
        raise _contradiction(container, profiles, described(amount))
    if gpus > 1:
        raise WordError(
            f"{container} {names.GPU_RESOURCE}: {gpus} contradicts {described(amount)}. A container gets a share of "
            f"one GPU. Write {names.GPU_RESOURCE}: 1, or remove this limit."
        )
    return amount


def _contradiction(container: str, profiles: tuple[str, ...], other: str) -> WordError:
    return WordError(f"{container}: {described(profiles)} contradicts {other}. Write only one of the two.")


def _share_amount(container: str, gpu_limits: Mapping[str, str]) -> Amount | None:
    memory = {mib for name in _MEMORY if (mib := _memory_mib(container, name, gpu_limits))}
    cores = {percent for name in _CORES if (percent := _number(container, name, gpu_limits))}
    for several, kind in ((memory, "memory"), (cores, "compute")):
        if len(several) > 1:
            raise WordError(
                f"{container}: several limits on a GPU's {kind} contradict each other. Write only one of them."
            )
    if not memory and not cores:
        return None
    percent = max(cores, default=0)
    if percent > 100:
        name = next(name for name in _CORES if name in gpu_limits)
        raise messages.is_not(f"{container} {name}", gpu_limits[name], messages.CORES)
    return Amount(percent, max(memory, default=0))


def _whole_gpus(container: str, gpu_limits: Mapping[str, str]) -> int:
    """Return the number of whole GPUs in a container's limits.

    ``nvidia.com/gpu`` and a limit for a product count once if both are set: in some clusters a pod has both, with the
    same number.

    Raises:
        WordError: The limits have different numbers. The message begins with ``container``.
    """
    numbers = {
        name: _number(container, name, gpu_limits) for name in gpu_limits if name in WHOLE or _names_product(name)
    }
    if len({number for number in numbers.values() if number}) > 1:
        limits_text = ", ".join(f"{name}: {number}" for name, number in sorted(numbers.items()))
        raise WordError(f"{container}: {limits_text} contradict each other. Write only one of them.")
    return max(numbers.values(), default=0)


def _profiles(container: str, gpu_limits: Mapping[str, str]) -> tuple[str, ...]:
    profiles: list[str] = []
    for name in sorted(name for name in gpu_limits if name.startswith(_MIG)):
        written, gb, rest = name.removeprefix(_MIG).partition("gb")
        profile = values.mig_profile(written + gb + ("+" + rest[1:] if rest.startswith(".") else rest))
        if profile is None:
            raise messages.is_not(f"{container}", name, messages.MIG_RESOURCE)
        number = _number(container, name, gpu_limits)
        if number + len(profiles) > MOST_GPUS:
            raise messages.is_not(f"{container} {name}", gpu_limits[name], messages.GPUS)
        profiles += [profile] * number
    return tuple(profiles)


def _number(container: str, name: str, gpu_limits: Mapping[str, str]) -> int:
    """Return the whole number in the limit ``name``; 0 without the limit.

    An error message about the number begins with ``container``.
    """
    text = gpu_limits.get(name, "0")
    if text.isascii() and text.isdigit() and len(text) <= 4:
        return int(text)
    value = _exact(text)
    if value is None or value.denominator != 1 or not 0 <= value <= 10**6:
        form = messages.CORES if name in _CORES else messages.GPUS
        raise messages.is_not(f"{container} {name}", text, form)
    return int(value)


def _memory_mib(container: str, name: str, gpu_limits: Mapping[str, str]) -> int:
    text = gpu_limits.get(name)
    if text is None:
        return 0
    value = _exact(text)
    if value is None or value < 0:
        raise messages.is_not(f"{container} {name}", text, messages.MEMORY)
    mib = math.ceil(value / _BYTES if value >= _BYTES else value * (1 if value >= _GIB else _MEMORY[name]))
    if mib > values.MOST_MEMORY_MIB:
        raise messages.is_not(f"{container} {name}", text, messages.MEMORY)
    return mib


def _exact(text: str) -> Fraction | None:
    try:
        return quantity.exact(text)
    except WordError:
        return None
