"""Identifiers of GPUs, PCI devices, MIG devices and MIG profiles: checks of their form."""

from __future__ import annotations

import re

_IDENTITY = re.compile(r"[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MIG = re.compile(r"MIG-[0-9a-z/-]{1,59}")
_MIG_PROFILE = re.compile(r"[1-9][0-9]?g\.[1-9][0-9]{0,3}gb([+-][a-z]{1,8}(\.[a-z]{1,8})?){0,2}")


def is_identity(text: str) -> bool:
    """Return whether ``text`` can be a GPU's identifier: in lower case it must be a DNS label (RFC 1123).

    The identifier becomes the name of a DRA device, which must be a DNS label. The identifiers of all vendors satisfy
    this: ``GPU-`` and a UUID, ``a5ff75a0-0000-1000-80d3-c6ef08e83a5d``, ``0x2f1c0b9a5d3e7746``.
    """
    return _IDENTITY.fullmatch(text) is not None


def is_bus_id(text: str) -> bool:
    """Return whether ``text`` is the identifier of a PCI device, a bus id as /sys writes it: ``0000:06:00.0``."""
    return _PCI.fullmatch(text) is not None


def is_mig_uuid(text: str) -> bool:
    """Return whether ``text`` can be a MIG device's identifier: ``MIG-`` and a lower-case UUID.

    Drivers before 470 used a path instead, which is not accepted.
    """
    return _MIG.fullmatch(text) is not None


def is_mig_profile(text: str) -> bool:
    """Return whether ``text`` is the name of a MIG profile, as NVML spells it without the leading ``MIG``.

    Examples are ``1g.10gb``, ``1g.10gb+me``, ``1g.24gb+me.all``, ``1g.24gb-me``, ``2g.48gb+gfx`` (NVIDIA's MIG user
    guide, supported profiles). ``1c.3g.40gb`` is no profile name: it names a compute instance with only a part of a GPU
    instance.
    """
    return _MIG_PROFILE.fullmatch(text) is not None


def short_bus_id(busid: str) -> str:
    """Return a bus id as /sys writes it: NVML's domain of eight digits becomes one of four."""
    domain, colon, rest = busid.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if colon and re.fullmatch("[0-9a-f]{1,8}", domain) else busid
