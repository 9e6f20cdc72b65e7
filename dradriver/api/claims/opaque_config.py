"""The opaque configuration of a claim, which the controller or the claim's author writes for the node agent.

Opaque configuration is the part of a claim that Kubernetes stores for a driver and does not read.
"""

from __future__ import annotations

import re

import msgspec

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.vocabulary import values
from dradriver.api.vocabulary.messages import shown
from dradriver.topology.identifiers import is_identity, is_mig_profile
from dradriver.yamltext.value_hints import hint

_MOST_START = 63
_UNKNOWN_FIELD = re.compile(r"unknown field `(.*?)`( - at )?", re.DOTALL)
_GPU_INDEX = re.compile(r"[0-9]{1,4}")  # a GPU's index, which shifts when another is lost


class Mig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The MIG instances that the node agent creates for a request.

    Attributes:
        profile: The profile's name as in ``nvidia-smi mig -lgip``, such as ``1g.10gb``.
        starts: The first memory slice of the instance, by the GPU's uuid. For a GPU without an entry the node agent
            chooses.
    """

    profile: str
    starts: dict[str, int] = {}


class ClaimConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The settings that the node agent needs for the containers of a claim.

    Attributes:
        api_version: ``gpu.topology/v1alpha1``.
        kind: ``ClaimConfig``.
        order: For each request, the uuids of its GPUs in the order of the ranks; optional.
        keep_env: Environment variables that the pod's author set. CDI edits leave them out, so as not to replace them.
        nccl: The NCCL setting: ``auto``, ``file``, ``env``, ``near-nics`` or ``off``.
        mig: For each request of MIG instances that the node agent creates on demand, the instances.
    """

    api_version: str
    kind: str
    order: dict[str, list[str]] = {}
    keep_env: list[str] = []
    nccl: str = values.NCCL_AUTO
    mig: dict[str, Mig] = {}


def make(
    order: dict[str, list[str]],
    keep_env: list[str],
    nccl: str = values.NCCL_AUTO,
    mig: dict[str, Mig] | None = None,
) -> dict[str, object]:
    """Return the opaque configuration as it is written in ``opaque.parameters``, with all keys sorted.

    The keys are sorted because server-side apply sorts them, too, and the parameters must stay equal to their copy in
    the claim's allocation. If they differ, the claim gets no device status (seen with Kubernetes 1.36.3).

    Args:
        order: The uuids of the GPUs by request, in the order of ranks.
        keep_env: The author's environment variables that no CDI edit may replace.
        nccl: The value of the pod's annotation ``nccl``, such as ``auto`` or ``off``.
        mig: The MIG instances to make, by request.
    """
    config: dict[str, object] = {
        "apiVersion": names.CONFIG_API_VERSION,
        "keepEnv": keep_env,
        "kind": names.CONFIG_KIND,
        "order": dict(sorted(order.items())),
    }

    # Older agents do not know these fields and refuse a claim that has them, so they are written only if needed.
    if nccl != values.NCCL_AUTO:
        config["nccl"] = nccl
    if mig:
        config["mig"] = {
            request: {"profile": instances.profile}
            | ({"starts": dict(sorted(instances.starts.items()))} if instances.starts else {})
            for request, instances in sorted(mig.items())
        }
    return dict(sorted(config.items()))


def read(parameters: bytes | msgspec.Raw | object) -> ClaimConfig:
    """Return the opaque configuration in ``opaque.parameters``, from JSON text or a decoded object.

    Raises:
        WordError: A version, kind or field is unknown, or has a value that this driver never writes.
    """
    try:
        if isinstance(parameters, bytes | msgspec.Raw):
            config = msgspec.json.decode(parameters, type=ClaimConfig)
        else:
            config = msgspec.convert(parameters, ClaimConfig)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WordError(f"opaque parameters of driver {names.DRIVER}: {error}{_known_fields(str(error))}.") from None
    if (config.api_version, config.kind) != (names.CONFIG_API_VERSION, names.CONFIG_KIND):
        raise WordError(
            f"opaque parameters of driver {names.DRIVER}: {config.api_version!r} {config.kind!r} is unknown. Write "
            f"apiVersion: {names.CONFIG_API_VERSION}, kind: {names.CONFIG_KIND}."
        )
    if values.nccl(config.nccl) is None:
        raise WordError(
            f"opaque parameters: nccl: {shown(config.nccl)} is not allowed. Write one of: {', '.join(values.NCCL)}."
        )

    # The values reach CDI edits and the node agent, which take them as they are. A GPU's index is refused because it is
    # another GPU's once one is lost.
    for request, uuids in config.order.items():
        for uuid in uuids:
            if not is_identity(uuid) or _GPU_INDEX.fullmatch(uuid):
                raise WordError(
                    f"opaque parameters: order[{request!r}]: {uuid!r} is not a UUID. Write the uuid attributes of the "
                    f"devices (GPU-…)."
                )
    for request, instances in config.mig.items():
        place = f"opaque parameters: mig[{request!r}]"
        if not is_mig_profile(instances.profile):
            raise WordError(
                f"{place}: {shown(instances.profile)} is not a MIG profile. Write it as nvidia-smi mig -lgip prints "
                f"it, for example 1g.10gb."
            )
        for uuid, start in instances.starts.items():
            if not is_identity(uuid) or _GPU_INDEX.fullmatch(uuid) or not 0 <= start <= _MOST_START:
                raise WordError(
                    f"{place}: starts: {shown(uuid)}: {start} is not valid. Write the uuid attribute of a GPU (GPU-…) "
                    f"and the first memory slice of the placement, 0 to {_MOST_START}."
                )
    return config


def _known_fields(error: str) -> str:
    """Return the known fields, for the message about an unknown field; empty for other errors.

    Args:
        error: The message of msgspec.
    """
    unknown = _UNKNOWN_FIELD.search(error)
    if unknown is None:
        return ""
    fields = Mig.__struct_encode_fields__ if unknown[2] else ClaimConfig.__struct_encode_fields__
    return f". Known fields: {', '.join(fields)}{hint(unknown[1], fields)}"
