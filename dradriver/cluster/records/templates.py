"""What is known of ResourceClaimTemplates: that they are there, and the specs of those that pods name.

A pod may name others beside the one of its GPUs: of network cards, or of a channel of multi-node NVLink. No scheduler
places it before they are there, and which nodes have what they ask for is not known before either.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.claims.claim_templates import Template
from dradriver.api.claims.pins import Key
from dradriver.api.policies.policy_sections import DEFAULTS
from dradriver.api.vocabulary.messages import shown
from dradriver.reason import Cause, Reason


class Templates:
    """Templates, and the pods of ours by those that they name.

    A pod counts for the template of its GPUs while it waits, and for the others until it ends: it has their devices.

    Attributes:
        known: All templates, by namespace and name; without their specs, unless whoever told of them had those.
        nic_classes: DeviceClasses of NICs, each with its driver's word, by which the whole ones are read.
    """

    def __init__(self) -> None:
        self.known: dict[Key, Template] = {}
        self.nic_classes: Mapping[str, str] = DEFAULTS.nics.every
        self._whole: dict[Key, Template] = {}  # templates with their specs, for as long as a pod names them
        self._named_by: dict[Key, set[Key]] = {}  # by template: the pods that name it

    def changed(self, key: Key, new: Template | None) -> None:
        """Update the known ResourceClaimTemplates by what a reflector shows."""
        if new is None:
            self.known.pop(key, None)
        else:
            self.known[key] = new
        self._keep(key)

    def read(self, key: Key, template: Template | None) -> None:
        """Note a whole ResourceClaimTemplate that was read, None if it does not exist."""
        if template is None:
            self.known.pop(key, None)
        elif key in self._named_by:
            self._whole[key] = self._by_classes(template)
            self.known[key] = msgspec.structs.replace(template, spec=None)

    def pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """Update which templates pods name, by a pod's old and new state."""
        before, after = _named(old), _named(new)
        if before == after:
            return
        for template in after:
            self._named_by.setdefault(template, set()).add(key)
            self._keep(template)
        for template in before:
            if template not in after:
                self._named_by[template].discard(key)
                if not self._named_by[template]:
                    del self._named_by[template]
                self._keep(template)

    def pods(self, key: Key) -> list[Key]:
        """Return the pods that name a template."""
        return sorted(self._named_by.get(key, ()))

    def of(self, pod: Pod) -> Template | None:
        """Return the whole template that a waiting pod names; None for none, or one that is not there or not read."""
        key = _own(pod)
        if key is None:
            return None
        template = self._whole.get(key) or self.known.get(key)
        return None if template is None or template.spec is None else self._by_classes(template)

    def unread_of(self, pod: Pod) -> Key | None:
        """Return the template that a waiting pod names if it is there and its spec has to be read."""
        key = _own(pod)
        return key if key is not None and key in self.known and self.of(pod) is None else None

    def lacking_of(self, pod: Pod) -> Reason | None:
        """Return which template, other than its GPUs' own, a pod cannot be placed without; None for none."""
        lacking = next((name for name in beside(pod) if (pod.metadata.namespace, name) not in self.known), None)
        return None if lacking is None else missing(lacking)

    def domain_of(self, pod: Pod) -> str | None:
        """Return the ComputeDomain of the templates that a pod names, by its uid; None if they are for none."""
        known = (self.known.get((pod.metadata.namespace, name)) for name in beside(pod))
        return next((one.domain for one in known if one is not None and one.domain is not None), None)

    def is_of_domain(self, template: Key) -> bool:
        """Return whether a template is of a ComputeDomain's channels."""
        known = self.known.get(template)
        return known is not None and known.domain is not None

    def _keep(self, key: Key) -> None:
        """Keep a spec, which never changes, for as long as its template is there and a pod names it."""
        known, kept = self.known.get(key), self._whole.pop(key, None)
        if known is None or key not in self._named_by:
            return
        whole = known if known.spec is not None else kept
        if whole is not None and whole.metadata.uid == known.metadata.uid:
            self._whole[key] = self._by_classes(whole)

    def set_nic_classes(self, classes: Mapping[str, str]) -> list[Key]:
        """Read templates by these NIC classes from now on. Returns those that may ask for something else now."""
        if classes == self.nic_classes:
            return []
        self.nic_classes = classes
        self._whole = {key: self._by_classes(template) for key, template in self._whole.items()}
        return sorted(self._whole)

    def _by_classes(self, template: Template) -> Template:
        if template.nic_classes is self.nic_classes:
            return template
        return msgspec.structs.replace(template, nic_classes=self.nic_classes)


def missing(template: str) -> Reason:
    """Return the reason that a pod waits for its ResourceClaimTemplate."""
    text = f"waits for ResourceClaimTemplate {shown(template)}, which is not there; create it in its namespace"
    return Reason(Cause.POD, text)


def beside(pod: Pod) -> tuple[str, ...]:
    """Return the templates that a pod names in addition to that of its GPUs."""
    entries = pod.spec.resource_claims
    return tuple([e.resource_claim_template_name for e in entries if e.resource_claim_template_name
                 and e.name != names.POD_CLAIM])  # fmt: skip


def _own(pod: Pod) -> Key | None:
    """Return the template that a waiting pod's claim of GPUs is made by."""
    return (pod.metadata.namespace, pod.template[1]) if pod.template is not None and _waits(pod) else None


def _named(pod: Pod | None) -> tuple[Key, ...]:
    """Return the templates that concern a pod: once it is bound, those beside its GPUs' own, whose channel it takes."""
    if pod is None or pod.finished:
        return ()
    own = _own(pod)
    others = tuple((pod.metadata.namespace, name) for name in beside(pod))
    return others if own is None else (own, *others)


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.finished)
