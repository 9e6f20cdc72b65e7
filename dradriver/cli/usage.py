"""``gputopo usage``: used GPU-hours, idle GPU-hours and their cost, by namespace, tenant, workload, pod or product."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click
import msgspec

from dradriver import __version__
from dradriver.api.claims.idleness import moment
from dradriver.api.policies.policy_sections import Policies
from dradriver.cli import usage_files
from dradriver.cli.cluster import access, cluster_reading, policies_in_force
from dradriver.cli.cluster.cluster_options import (
    driver_namespace_option,
    namespace_options,
    only_namespace,
    output_formats,
    server_options,
)
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.cli.cluster.tenant_usage import Own
from dradriver.cli.inputs import given_policies
from dradriver.cli.period import Period, period
from dradriver.cli.usage_report import HEADS, By, Report, Row, report
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import NAMESPACES
from dradriver.view import document as view
from dradriver.view.document import Cell, Column, Document, Notes, Table, words
from dradriver.view.output import show_as, warn

if TYPE_CHECKING:
    from collections.abc import Callable

_DETAILS: Final = ("whole GPU hours", "share hours", "slice hours")


@click.command()
@click.option(
    "--from", "begin", default="30d", show_default=True, metavar="TIME",
    help="The start: a date, a time (RFC 3339) or an age: 2026-03-01, 2026-03-01T08:00:00Z, 7d.",
)  # fmt: skip
@click.option(
    "--to",
    "end",
    default="",
    metavar="TIME",
    help="The end, in the same forms. A date includes its whole day. Default: now.",
)
@click.option(
    "--by", type=click.Choice(tuple(HEADS)), default="namespace", show_default=True, help="The rows of the table."
)
@click.option(
    "--policies",
    "policies_file",
    metavar="FILE",
    help="The policies file with the prices and tenants to use. Default: the policies of the driver in the cluster.",
)
@namespace_options("Only this namespace. Default: all namespaces.")
@driver_namespace_option
@server_options
@output_formats("csv", "xlsx")
def usage(
    begin: str,
    end: str,
    by: str,
    policies_file: str | None,
    namespace: str | None,
    all_namespaces: bool,
    driver_namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    output: str,
    no_color: bool,
) -> None:
    """Print GPU hours, idle GPU hours and cost for each namespace, tenant, workload, pod or product.

    A share or MIG slice counts as its fraction of a GPU. Times are UTC, rounded to whole hours. The prices of GPUs are
    in the section `prices` of the policies file in force. xlsx is written to standard output: gputopo usage -o xlsx >
    usage.xlsx
    """
    if output == "xlsx" and sys.stdout.isatty():
        raise click.UsageError("-o xlsx is no text: write it to a file, with > usage.xlsx")
    within = period(begin, end, now=time.time())
    server = access.server(None if kubeconfig is None else Path(kubeconfig), context)
    policies = given_policies(policies_file)
    only = only_namespace(namespace, all_namespaces=all_namespaces)
    usage_report = asyncio.run(_read(server, driver_namespace, policies, within, cast("By", by), only))
    match output:
        case "csv":
            click.echo(usage_files.as_csv(usage_report), nl=False)
        case "xlsx":
            click.echo(usage_files.as_xlsx(usage_report), nl=False)
        case _:
            show_as(
                output,
                document=lambda: document(usage_report),
                data=lambda: msgspec.to_builtins(usage_report),
                no_color=no_color,
            )


async def _read(
    server: ServerConfig,
    driver_namespace: str | None,
    file_policies: Policies | None,
    within: Period,
    by: By,
    only: str | None,
) -> Report:
    """Read the GPU time that the controller has written, and return the report on it.

    Args:
        server: The API server.
        driver_namespace: The driver's namespace, if the user names it.
        file_policies: The policies of the user's file; None to use the policies in force.
        within: The hours to report on.
        by: Whose GPU time a row of the report sums up, for example ``tenant``.
        only: The only namespace to count; None for all.

    Raises:
        ClusterError: The GPU time cannot be read, or there is none.
    """
    tenant_usage = Own(file_policies)  # reads the ConfigMaps with GPU time, and the policies without a file
    labels: dict[str, dict[str, str]] = {}  # by namespace
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        namespace = await policies_in_force.driver_namespace(client, driver_namespace)
        await tenant_usage.read(client, server, namespace)
        policies = tenant_usage.policies
        # Namespaces are read only if a tenant selects them by labels.
        if by == "tenant" and any(tenant.namespace_labels for tenant in policies.tenants.values()):
            from dradriver.controller.features.namespaces import Namespace

            namespaces = await cluster_reading.listed(client, server, NAMESPACES, Namespace)
            labels = {listed.metadata.name: dict(listed.metadata.labels) for listed in namespaces}

    if not tenant_usage.hours:
        # The best reason comes first: the right is missing, then what could not be read, then that nothing is there.
        missing = f"namespace {namespace} has no GPU time"
        raise ClusterError(
            tenant_usage.refused
            or next((text for text in tenant_usage.unread if text != tenant_usage.trouble), "")
            or (
                f"{missing}: the controller writes it once a minute. Check that the driver is in "
                "this namespace, or write --driver-namespace NAME."
            )
        )
    for trouble in tenant_usage.unread:
        warn(trouble)
    first_hour = min(tenant_usage.hours)
    if within.first < first_hour:
        warn(f"there are no records from before {Period(first_hour, 0).as_texts()[0]}")
    tenants = tenant_usage.tenants(policies, {}, labels)
    tenant_of: Callable[[str], str] = tenants.of if policies.tenants else lambda name: f"namespace/{name}"
    return report(
        tenant_usage.hours, tenant_usage.details, by=by, within=within, prices=policies.prices, tenant_of=tenant_of,
        counted_until=moment(tenant_usage.until), only=only,
    )  # fmt: skip


def document(found: Report) -> Document:
    """Return the output of ``gputopo usage``: GPU hours, idle hours and costs."""
    title = f"GPU hours from {found.begin} to {found.end}, counted until {found.counted_until} (UTC)"
    if not found.rows:
        return view.report(Notes(lines=(Cell(title), Cell("no GPU time in this period"))))
    names = usage_files.heads(found)
    count = len(HEADS[found.by])
    columns = tuple(
        Column(name, number=place >= count, detail=name in _DETAILS and not _differs(found))
        for place, name in enumerate(names)
    )
    rows = [words(*row.key, *_numbers(row, found)) for row in found.rows]
    rows.append(words(*("total", "")[:count], *_numbers(found.total, found)))
    return view.report(Notes(lines=(Cell(title),)), Table(columns=columns, rows=tuple(rows)))


def _differs(found: Report) -> bool:
    """Return whether the report has shares or slices, not only whole GPUs."""
    return bool(found.total.share_hours or found.total.slice_hours)


def _numbers(row: Row, found: Report) -> tuple[str, ...]:
    return tuple(f"{value:,.2f}" for value in usage_files.numbers(row, found))
