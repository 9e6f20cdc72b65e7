"""Each right of the chart has a row: what uses it, what bounds it, and the test. No row is out of date."""

from __future__ import annotations

import itertools
import re
from typing import Final, NamedTuple

import pytest

from dradriver.api.gangs import gang_size_of_owner, suspendable_owners
from tests.fakes.chart import VARIANTS, objects
from tests.paths import REPO

pytestmark = pytest.mark.helm

READ: Final = frozenset({"get", "list", "watch"})
NAMED: Final = "resourceNames"
"""The rule itself names the objects."""
ALL: Final = (
    *VARIANTS["gangs"],
    *VARIANTS["preemption"],
    *VARIANTS["page"],
    "controller.idleEviction=true",
    "policies.tenants.b.namespaceLabels.team=b",
)
"""Values that give each account all rights that it can have."""
LEAST: Final = "tests/unit/chart/test_rights.py::test_least_privilege_of_the_controller"
RELEASE_OWNER: Final = "dradriver/controller/writing/release_owner.py"
SEATS: Final = "dradriver/controller/writing/gang_barrier_slice.py"
CLAIMS: Final = "dradriver/controller/writing/api_writer.py"
STOLEN: Final = "tests/contract/test_stolen_tokens.py"
GANGS: Final = "tests/contract/test_gang_policies.py"
POLICIES: Final = "tests/contract/test_policies.py"
READS: Final = "tests/unit/chart/test_rights_table.py::test_what_only_reads_is_bounded_by_the_role"


class Right(NamedTuple):
    """A right of an account.

    Attributes:
        account: The account's part of the chart.
        resource: The resource, with its group behind a dot.
        verbs: What may be done, words separated by blanks.
        used_by: The file that does it.
        bound: The policy that bounds it, or ``NAMED``; empty for a right to read.
        test: Where that is tested.
    """

    account: str
    resource: str
    verbs: str
    used_by: str
    bound: str = ""
    test: str = READS


RIGHTS: Final = (
    Right("controller", "pods", "get list watch", "dradriver/controller/controller.py"),
    Right(
        "controller", "pods", "patch", "dradriver/controller/writing/pod_writer.py",
        "pod-writes", f"{STOLEN}::test_the_token_of_the_controller_changes_nothing_else_of_pods",
    ),
    Right(
        "controller", "pods", "delete", "dradriver/controller/owners/evict_pods.py",
        "deletions", f"{GANGS}::test_the_controller_deletes_pods_of_stateful_sets_and_no_others",
    ),
    Right(
        "controller", "pods/status", "patch", "dradriver/controller/writing/commit.py",
        "nominations", f"{GANGS}::test_the_controller_nominates_nodes_of_its_pods",
    ),
    Right(
        "controller", "pods/eviction", "create", "dradriver/controller/owners/evict_pods.py",
        "evictions", f"{STOLEN}::test_pods_end_by_the_controller_only_where_the_driver_works",
    ),
    Right("controller", "nodes", "list watch", "dradriver/controller/controller.py"),
    Right("controller", "namespaces", "list watch", "dradriver/controller/features/namespaces.py"),
    *(
        Right("controller", resource, "get", "dradriver/controller/features/agent_admission.py", NAMED, LEAST)
        for resource in ("namespaces", "daemonsets.apps")
    ),
    Right("controller", "resourceslices.resource.k8s.io", "list watch", "dradriver/controller/controller.py"),
    Right(
        "controller", "resourceslices.resource.k8s.io", "create", SEATS,
        "seats", f"{GANGS}::test_the_controller_offers_seats_and_nothing_else_and_agents_offer_none",
    ),
    Right(
        "controller", "resourceslices.resource.k8s.io", "get update delete", SEATS,
        NAMED, f"{GANGS}::test_the_controller_offers_seats_and_nothing_else_and_agents_offer_none",
    ),
    Right("controller", "deviceclasses.resource.k8s.io", "get list watch", SEATS),
    Right("controller", "clusterroles.rbac.authorization.k8s.io", "get", RELEASE_OWNER, NAMED, LEAST),
    Right("controller", "devicetaintrules.resource.k8s.io", "list watch", "dradriver/controller/controller.py"),
    Right("controller", "topologies.kueue.x-k8s.io", "list watch", "dradriver/controller/controller.py"),
    Right(
        "controller", "resourceclaimtemplates.resource.k8s.io", "get list watch",
        "dradriver/controller/reading/template_reader.py",
    ),
    Right(
        "controller", "resourceclaimtemplates.resource.k8s.io", "create delete",
        "dradriver/controller/writing/template_writer.py",
        "template-writes", f"{STOLEN}::test_the_token_of_the_controller_is_good_for_its_own_templates_only",
    ),
    Right("controller", "resourceclaims.resource.k8s.io", "get list watch", "dradriver/controller/controller.py"),
    Right(
        "controller", "resourceclaims.resource.k8s.io", "create patch delete", CLAIMS,
        "claim-writes", f"{STOLEN}::test_the_token_of_the_controller_is_good_for_its_own_claims_only",
    ),
    Right(
        "controller", "resourceclaims/status.resource.k8s.io", "patch", "dradriver/controller/writing/commit.py",
        "seat-statuses", f"{GANGS}::test_a_stolen_token_of_the_controller_changes_nothing_else_of_a_claim",
    ),
    Right(
        "controller", "resourceclaims/driver.resource.k8s.io", "arbitrary-node:patch",
        "dradriver/controller/writing/commit.py",
        NAMED, f"{GANGS}::test_a_stolen_token_of_the_controller_changes_nothing_else_of_a_claim",
    ),
    *(
        Right("controller", f"{plural}.{group}", "get", "dradriver/controller/owners/owner_reader.py")
        for group, plural in {**gang_size_of_owner.OBJECTS, **suspendable_owners.OBJECTS}.values()
    ),
    *(
        Right(
            "controller", "{1}.{0}".format(*suspendable_owners.OBJECTS[kind]), "list patch",
            "dradriver/controller/owners/owner_restarts.py", f"suspends-{suspendable_owners.OBJECTS[kind][1]}",
            f"{STOLEN}::test_the_token_of_the_controller_suspends_and_writes_nothing_else_on_owners",
        )
        for kind in suspendable_owners.FIELDS
    ),
    Right("controller", "poddisruptionbudgets.policy", "list", "dradriver/controller/owners/disruption_budgets.py"),
    Right("controller", "persistentvolumeclaims", "get", "dradriver/cluster/pods/volumes.py"),
    Right("controller", "persistentvolumes", "get", "dradriver/cluster/pods/volumes.py"),
    Right("controller", "storageclasses.storage.k8s.io", "get", "dradriver/cluster/pods/volumes.py"),
    Right(
        "controller", "events", "create patch", "dradriver/kube/event_recorder.py",
        "events", f"{STOLEN}::test_events_are_reported_under_the_own_name_and_about_the_drivers_objects",
    ),
    Right(
        "controller", "leases.coordination.k8s.io", "get update", "dradriver/kube/leader.py",
        NAMED, "tests/unit/chart/test_rights.py::test_least_privilege_of_the_controller",
    ),
    Right(
        "controller", "leases.coordination.k8s.io", "create", "dradriver/kube/leader.py",
        "creations", f"{STOLEN}::test_in_the_drivers_namespace_the_accounts_create_only_what_they_keep_there",
    ),
    Right(
        "controller", "configmaps", "get update", "dradriver/controller/writing/usage_store.py",
        NAMED, "tests/unit/chart/test_rights.py::test_least_privilege_of_the_controller",
    ),
    Right(
        "controller", "configmaps", "list watch", "dradriver/process/watched_policies.py",
        NAMED, "tests/contract/test_watched_policies.py::test_what_is_stored_is_in_force_without_a_file",
    ),
    Right(
        "controller", "configmaps", "create", "dradriver/controller/writing/reservation_store.py",
        "creations", f"{STOLEN}::test_in_the_drivers_namespace_the_accounts_create_only_what_they_keep_there",
    ),
    Right("node", "resourceslices.resource.k8s.io", "list watch", "dradriver/node/publishing/node_objects.py"),
    Right(
        "node", "resourceslices.resource.k8s.io", "create update delete", "dradriver/node/publishing/publisher.py",
        "slices", f"{STOLEN}::test_an_agent_creates_slices_under_names_of_its_own_node_only",
    ),
    Right("node", "resourceclaims.resource.k8s.io", "get list", "dradriver/node/publishing/allocated_devices.py"),
    Right(
        "node", "resourceclaims/status.resource.k8s.io", "patch", "dradriver/node/api_server.py",
        "statuses", f"{POLICIES}::test_a_stolen_token_of_an_agent_changes_nothing_else_of_a_claim",
    ),
    Right(
        "node", "resourceclaims/driver.resource.k8s.io", "associated-node:patch", "dradriver/node/api_server.py",
        NAMED, f"{POLICIES}::test_a_stolen_token_of_an_agent_changes_nothing_else_of_a_claim",
    ),
    Right(
        "node", "events", "create patch", "dradriver/kube/event_recorder.py",
        "events", f"{STOLEN}::test_events_are_reported_under_the_own_name_and_about_the_drivers_objects",
    ),
    Right("node", "nodes", "get list watch", "dradriver/node/publishing/node_objects.py"),
    *(
        Right(
            "webhook", f"{kind}webhookconfigurations.admissionregistration.k8s.io", "get patch",
            "webhook/certificate_keeper.py",
            NAMED, f"{STOLEN}::test_the_token_of_the_webhook_writes_the_bundles_of_its_configurations",
        )
        for kind in ("mutating", "validating")
    ),
    Right(
        "webhook", "secrets", "get update", "webhook/certificate_keeper.py",
        NAMED, "tests/unit/chart/test_rights.py::test_least_privilege_of_the_webhook",
    ),
    Right(
        "webhook", "secrets", "create", "webhook/certificate_keeper.py",
        "creations", f"{STOLEN}::test_in_the_drivers_namespace_the_accounts_create_only_what_they_keep_there",
    ),
    Right("page", "pods", "get list watch", "dradriver/cli/page/followed_objects.py"),
    Right("page", "nodes", "list watch", "dradriver/cli/page/followed_objects.py"),
    Right("page", "configmaps", "get list watch", "dradriver/cli/page/followed_objects.py"),
    *(
        Right("page", f"{plural}.resource.k8s.io", "list watch", "dradriver/cli/page/followed_objects.py")
        for plural in ("resourceclaims", "resourceslices", "deviceclasses")
    ),
    *(
        Right("page", resource, "list", "dradriver/cli/cluster/listed_cluster.py")
        for resource in (
            "devicetaintrules.resource.k8s.io",
            "resourceclaimtemplates.resource.k8s.io",
            "topologies.kueue.x-k8s.io",
            "namespaces",
        )
    ),
    Right("page", "events", "list", "dradriver/cli/explainer/pod_history.py"),
    # People are bound to the viewer. They may get by name what they may list.
    *(
        Right("viewer", f"{plural}.resource.k8s.io", "get list watch", "dradriver/cli/cluster/listed_cluster.py")
        for plural in (
            *("resourceslices", "resourceclaims", "resourceclaimtemplates", "deviceclasses", "devicetaintrules"),
        )
    ),
    *(
        Right("viewer", resource, "get list watch", "dradriver/cli/cluster/listed_cluster.py")
        for resource in ("pods", "nodes", "namespaces", "topologies.kueue.x-k8s.io")
    ),
    Right("viewer", "events", "get list watch", "dradriver/cli/explainer/pod_history.py"),
    Right("viewer", "resourcequotas", "get list watch", "dradriver/cli/quota.py"),
    *(
        Right(
            "viewer", f"{kind}webhookconfigurations.admissionregistration.k8s.io", "get list",
            "dradriver/cli/verify.py",
        )
        for kind in ("mutating", "validating")
    ),
    Right("viewer", "configmaps", "get list watch", "dradriver/cli/cluster/tenant_usage.py"),
    Right("viewer", "daemonsets.apps", "get list", "dradriver/cli/verify.py"),
    Right("viewer", "leases.coordination.k8s.io", "get list", "dradriver/cli/verify.py"),
    *(
        Right(account, resource, "get", "dradriver/cluster/pods/volumes.py")
        for account in ("page", "viewer")
        for resource in ("persistentvolumeclaims", "persistentvolumes", "storageclasses.storage.k8s.io")
    ),
    *(
        Right(account, f"{plural}.{group}", "get", "dradriver/controller/owners/owner_reader.py")
        for account in ("page", "viewer")
        for group, plural in {**gang_size_of_owner.OBJECTS, **suspendable_owners.OBJECTS}.values()
    ),
    # Helm deletes the account after the look at the pods.
    Right("uninstall", "pods", "list", "dradriver/cli/uninstall.py"),
    Right("uninstall", "resourceclaims.resource.k8s.io", "list", "dradriver/cli/uninstall.py"),
    Right("test", "resourceslices.resource.k8s.io", "list", "helm/gpu-topology-dra/files/smoke.py"),
    # Helm deletes the account after the test. The right is one of the namespace `default`.
    Right(
        "test", "resourceclaims.resource.k8s.io", "create", "helm/gpu-topology-dra/files/smoke.py",
        "parts", "tests/unit/chart/test_smoke.py::",
    ),
)  # fmt: skip

_Rule = tuple[str, str, str, bool]  # account, resource, verb, and whether the rule names objects


def _rendered(*settings: str) -> set[_Rule]:
    return {
        (name.removeprefix("gpu-topology-"), f"{resource}.{group}".rstrip("."), verb, "resourceNames" in rule)
        for (kind, name), role in objects(*settings).items()
        if kind in ("Role", "ClusterRole")
        for rule in role["rules"]
        for group, resource, verb in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def _rows() -> set[_Rule]:
    return {
        (right.account, right.resource, verb, right.bound == NAMED) for right in RIGHTS for verb in right.verbs.split()
    }


def test_every_right_has_a_row_and_every_row_a_right() -> None:
    assert _rendered(*ALL) == _rows()


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_values_give_a_right_without_a_row(variant: str) -> None:
    assert _rendered(*VARIANTS[variant]) <= _rows()


def test_every_row_names_code_a_policy_and_a_test_that_are_there() -> None:
    rendered = objects(*ALL)
    for right in RIGHTS:
        assert (REPO / right.used_by).is_file(), right
        path, _, name = right.test.partition("::")
        assert re.search(rf"def {name}", (REPO / path).read_text()), right
        if right.bound not in ("", NAMED):
            assert ("ValidatingAdmissionPolicyBinding", f"gpu-topology-{right.bound}") in rendered, right


def test_what_only_reads_is_bounded_by_the_role() -> None:
    assert [right for right in RIGHTS if not right.bound and not READ.issuperset(right.verbs.split())] == []
    secrets = {right for right in RIGHTS if right.resource.startswith("secrets") and "list" in right.verbs}
    assert not secrets, "to list Secrets is to read them"


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_policy_is_there_wherever_the_right_is(variant: str) -> None:
    rendered = objects(*VARIANTS[variant])
    there = _rendered(*VARIANTS[variant])
    for right in RIGHTS:
        has = any((right.account, right.resource, verb, False) in there for verb in right.verbs.split())
        if has and right.bound not in ("", NAMED):
            assert ("ValidatingAdmissionPolicyBinding", f"gpu-topology-{right.bound}") in rendered, right
