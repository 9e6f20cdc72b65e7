"""``gputopo quota``: converts quotas on a device plugin's resources into quotas on claims."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from dradriver import __version__
from dradriver.api.base import names, quantity
from dradriver.api.base.allocating_driver import OURS, current_ledger
from dradriver.api.base.errors import WordError
from dradriver.api.vocabulary import container_limits
from dradriver.cli import tenant_quotas
from dradriver.cli.cluster import access, cluster_reading
from dradriver.cli.cluster.cluster_options import (
    allocating_driver_option,
    namespace_options,
    only_namespace,
    output_formats,
    server_options,
)
from dradriver.cli.inputs import called, content, policies_of
from dradriver.cli.linter.manifest_documents import DocumentError, documents
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import Resource
from dradriver.view.document import report, table
from dradriver.view.output import show_as, show_documents, warn
from dradriver.view.terminal_text import plain

KIND: Final = "ResourceQuota"
_QUOTAS: Final = Resource("", "v1", "resourcequotas", KIND, namespaced=True)
_LINE_OF_CLASS: Final = "{}.deviceclass.resource.k8s.io/devices"
WHOLE: Final = _LINE_OF_CLASS.format(names.DEVICE_CLASS)
MIG: Final = _LINE_OF_CLASS.format(names.MIG_CLASS)
SHARE: Final = _LINE_OF_CLASS.format(names.SHARE_CLASS)
_OF_PRODUCT: Final = f"{names.GPU_RESOURCE}."
_MIG: Final = "nvidia.com/mig-"
_KEPT_METADATA: Final = ("name", "namespace", "labels", "annotations")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class Converted(msgspec.Struct, frozen=True):
    """The conversion of one quota.

    Attributes:
        name: The name of the quota, with its namespace if it has one.
        before: Its lines that count GPUs of a device plugin.
        after: The lines that count the same amounts in claims.
        notes: Differences between ``before`` and ``after``.
        quotas: The quotas to apply.
    """

    name: str
    before: dict[str, str]
    after: dict[str, str]
    notes: tuple[str, ...]
    quotas: tuple[dict[str, Any], ...]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def quota() -> None:
    """Convert quotas on requests.nvidia.com/gpu to quotas that count claims."""


@quota.command()
@click.argument("file", required=False)
@namespace_options("The namespace. Default: the context's.")
@server_options
@allocating_driver_option
@click.option(
    "--policies",
    "policies_file",
    metavar="FILE",
    help="Print quotas for the caps of the tenants in this policies file instead.",
)
@click.option("--replace", is_flag=True, help="Remove what the quota counted before. Otherwise the quota counts both.")
@output_formats(usual="yaml")
def convert(
    file: str | None,
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    policies_file: str | None,
    replace: bool,
    output: str,
    no_color: bool,
) -> None:
    """Print the quotas in FILE (- is standard input), or in the cluster without FILE, so that they count claims.

    The webhook replaces a pod's GPU limits by a claim. So a quota on requests.nvidia.com/gpu counts none of this
    driver's pods. Quotas without GPUs are left out. The command writes nothing to the cluster; "kubectl apply -f -"
    does.
    """
    if file is not None and (namespace or all_namespaces or kubeconfig or context):
        raise click.UsageError(
            "FILE excludes -n, -A, --kubeconfig and --context, which name a cluster. Remove one of the two."
        )
    if policies_file is not None:
        if file is not None or namespace or all_namespaces or kubeconfig or context or replace:
            raise click.UsageError("--policies makes quotas of its own: give no others, no cluster and no --replace")
        _print_tenant_quotas(policies_file, output, no_color=no_color)
        return

    if file is not None:
        old_quotas = _quotas_of_file(file)
    else:
        server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
        old_quotas = asyncio.run(
            _quotas_of_cluster(server, only_namespace(namespace, all_namespaces=all_namespaces, usual=server.namespace))
        )
    conversions = [converted for old in old_quotas if (converted := convert_quota(old, replace=replace)) is not None]
    for conversion in conversions:
        for note in conversion.notes:
            warn(f"{conversion.name}: {note}")
    if not conversions:
        warn("no quota names GPUs, so there is nothing to convert.")
    quotas = [quota for conversion in conversions for quota in conversion.quotas]
    if output == "yaml":
        show_documents(quotas)
    else:
        rows = [
            (conversion.name, ", ".join(f"{key}: {value}" for key, value in counts.items()))
            for conversion in conversions
            for counts in (conversion.before, conversion.after)
        ]
        show_as(
            output,
            document=lambda: report(table("quota", "counts", rows=rows)),
            data=lambda: {"apiVersion": "v1", "kind": "List", "items": quotas},
            no_color=no_color,
        )


def _print_tenant_quotas(policies_file: str, output: str, *, no_color: bool) -> None:
    """Print the quotas for the tenants of a policies file."""
    tenants = tenant_quotas.of_policies(policies_of(policies_file))
    for tenant in tenants:
        for note in tenant.notes:
            warn(f"tenant {tenant.tenant}: {note}")
    if not tenants:
        warn("no tenant has a cap, so there is no quota to write. Add a cap to a tenant in the policies file.")
    quotas = [quota for tenant in tenants for quota in tenant.quotas]
    if output == "yaml":
        show_documents(quotas)
        return
    rows = [(tenant.tenant, ", ".join(f"{key}: {value}" for key, value in tenant.counts.items())) for tenant in tenants]
    show_as(
        output,
        document=lambda: report(table("tenant", "counts", rows=rows)),
        data=lambda: {"apiVersion": "v1", "kind": "List", "items": quotas},
        no_color=no_color,
    )


def _quotas_of_file(file: str) -> list[dict[str, Any]]:
    quotas = []
    for document in documents(content(file), called(file)):
        if isinstance(document, DocumentError):
            raise click.ClickException(plain(str(document)))
        if document.data["kind"] == KIND:
            quotas.append(document.data)
    return quotas


async def _quotas_of_cluster(server: ServerConfig, namespace: str | None) -> list[dict[str, Any]]:
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        return await cluster_reading.listed(client, server, _QUOTAS, dict, namespace=namespace)


def convert_quota(old_quota: dict[str, Any], *, replace: bool) -> Converted | None:
    """Return a quota that counts claims instead of a device plugin's resources, such as ``nvidia.com/gpu``.

    The result is None if ``old_quota`` names no GPUs.

    Args:
        old_quota: The quota, as JSON data.
        replace: Whether to remove the lines on the device plugin's resources; else the new quota has both.
    """
    # A line of a quota is an entry of ``spec.hard``: a resource, and how much of it all pods may have.
    metadata, spec = _dict_or_empty(old_quota.get("metadata")), _dict_or_empty(old_quota.get("spec"))
    lines = {str(key): str(value) for key, value in _dict_or_empty(spec.get("hard")).items()}
    before = {
        key: value
        for key, value in lines.items()
        if container_limits.is_ours(_resource_of_line(key)) or _names_product(key)
    }
    if not before:
        return None
    after, notes = _claim_counts(before)

    # 1. The metadata of the new quota: what the API server sets is left out, and kubectl's copy of the old quota.
    namespace, name = metadata.get("namespace"), str(metadata.get("name") or "quota")
    new_metadata: dict[str, Any] = {key: metadata[key] for key in _KEPT_METADATA if key in metadata}
    if isinstance(annotations := new_metadata.get("annotations"), dict):
        new_metadata["annotations"] = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}

    # 2. Scopes select pods, and a quota with scopes counts no claims: the counts of claims then need a second quota.
    remaining = {key: value for key, value in lines.items() if not (replace and key in before)}
    scopes = [key for key in ("scopes", "scopeSelector") if spec.get(key)]
    new_quotas: list[tuple[dict[str, Any], dict[str, Any]]] = []  # metadata and spec
    if not remaining | after:
        notes.append("nothing is left of it: delete it, or write what its claims may have")
    elif scopes:
        notes.append(f"it has {' and '.join(scopes)}, which claims have not: they are counted by a quota of their own")
        if remaining:
            new_quotas.append((new_metadata, spec | {"hard": remaining}))
        else:
            notes.append("nothing is left of it: delete it")
        if after:
            device_metadata: dict[str, Any] = {key: value for key, value in new_metadata.items() if key != "name"}
            device_metadata["name"] = f"{name[:245]}-devices"
            new_quotas.append((device_metadata, {"hard": after}))
    else:
        new_quotas.append((new_metadata, spec | {"hard": remaining | after}))

    if not replace and names.GPU_RESOURCE in map(_resource_of_line, before):
        notes.append(
            f"it still counts {names.GPU_RESOURCE} for pods of a device plugin, and each of the two lines has its "
            "own limit. --replace removes the old line. If the chart sets deviceClass.extendedResourceName, the "
            "old line counts claims already"
        )
    return Converted(
        name=plain(f"{namespace}/{name}" if namespace else name),
        before=before,
        after=after,
        notes=tuple(notes),
        quotas=tuple(
            {"apiVersion": "v1", "kind": KIND, "metadata": quota_metadata, "spec": quota_spec}
            for quota_metadata, quota_spec in new_quotas
        ),
    )


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _resource_of_line(key: str) -> str:
    return key.removeprefix("requests.").removeprefix("limits.")


def _names_product(key: str) -> bool:
    return _resource_of_line(key).startswith(_OF_PRODUCT)


def _claim_counts(before: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the lines that make a quota count claims, and notes on GPUs that they do not count.

    Args:
        before: Lines of a quota that count a device plugin's resources. The new lines have the same amounts.
    """
    driver = current_ledger()  # the DRA driver that allocates GPUs in the cluster
    whole_counts: dict[str, int] = {}  # by DeviceClass line
    slice_counts: dict[str, int] = {}  # by resource
    notes = []
    for key, text in before.items():
        resource = _resource_of_line(key)
        try:
            number = quantity.whole(text)
        except WordError as error:
            notes.append(f"{key}: {error}")
            continue
        # Only this driver has fractions: if another one allocates the GPUs, claims request whole GPUs only.
        # A quota can count both requests.X and limits.X: the smaller number binds.
        if driver is not OURS and resource != names.GPU_RESOURCE and not _names_product(key):
            notes.append(f"{key}: claims that this driver makes of GPUs of {driver.driver} are of whole ones")
        elif resource.startswith(_MIG):
            slice_counts[resource] = min(number, slice_counts.get(resource, number))
        elif resource in container_limits.WHOLE or _names_product(key):
            # ``vendor`` and ``product`` read limits of a container, so they get the resource as a limit of 1.
            class_line = _LINE_OF_CLASS.format(driver.class_of(container_limits.vendor(key, {resource: 1})))
            if container_limits.product(key, {resource: 1}):
                notes.append(
                    f"{key}: no quota counts the GPUs of one product. Write how many "
                    f"GPUs of all products {class_line} allows"
                )
            else:
                whole_counts[class_line] = min(number, whole_counts.get(class_line, number))
        else:
            notes.append(f"{key}: no quota counts memory or compute of shares. Write how many shares {SHARE} allows")

    after = {class_line: str(number) for class_line, number in whole_counts.items()}
    if slice_counts:
        after[MIG] = str(sum(slice_counts.values()))
        if len(slice_counts) > 1:
            notes.append(f"{', '.join(slice_counts)}: {MIG} counts slices of all profiles together")
    # A quota does not limit what it does not name, so the other classes of GPUs stay unlimited.
    all_lines = [*map(_LINE_OF_CLASS.format, driver.vendor_of), *((MIG, SHARE) if driver is OURS else ())]
    unlimited = [line for line in all_lines if line not in after]
    if unlimited:
        zeros = " and ".join(f"{line}: 0" for line in unlimited)
        notes.append(f"what it does not name it does not limit: write {zeros} for none")
    return after, notes
