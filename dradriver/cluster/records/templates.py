"""ResourceClaimTemplates: which exist, and the specs of those that pods name.

In addition to the template of its GPUs, a pod can name templates for network cards or for a channel of multi-node
NVLink. No scheduler places the pod before these templates exist. Before that, the controller cannot know which nodes
have the devices that these templates request.

A pod *waits* until it is bound.
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
    """The templates, and this driver's pods that name them.

    A pod is listed under the template of its GPUs while it waits. It is listed under its other templates until it ends,
    because it uses their devices.

    Attributes:
        known: All templates, by namespace and name. A template has its spec only if it was read with the spec.
        nic_classes: The DeviceClasses that stand for NICs, each with the short name of its driver. The requests in
            specs are evaluated with them.
    """

    def __init__(self) -> None:
        self.known: dict[Key, Template] = {}
        self.nic_classes: Mapping[str, str] = DEFAULTS.nics.every
        self._whole: dict[Key, Template] = {}  # templates with their specs, for as long as a pod names them
        self._named_by: dict[Key, set[Key]] = {}  # by template: the pods that name it

    def changed(self, key: Key, new: Template | None) -> None:
        """Update the template ``key`` with its new state from the reflector.

        ``new`` is None if the template was deleted.
        """
        if new is None:
            self.known.pop(key, None)
        else:
            self.known[key] = new
        self._keep(key)

    def read(self, key: Key, template: Template | None) -> None:
        """Record a template that was read with its spec; ``template`` is None if it does not exist."""
        if template is None:
            self.known.pop(key, None)
        elif key in self._named_by:
            self._whole[key] = self._by_classes(template)
            self.known[key] = msgspec.structs.replace(template, spec=None)

    def pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """Update which templates pods name, from a pod's old and new state."""
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
        """Return the pods that are listed under a template, because they name it."""
        return sorted(self._named_by.get(key, ()))

    def of(self, pod: Pod) -> Template | None:
        """Return the template of a waiting pod's GPUs with its spec.

        None if the pod names no template, or if the template does not exist or its spec is not read.
        """
        key = _own(pod)
        if key is None:
            return None
        template = self._whole.get(key) or self.known.get(key)
        return None if template is None or template.spec is None else self._by_classes(template)

    def unread_of(self, pod: Pod) -> Key | None:
        """Return the template of a waiting pod's GPUs whose spec must still be read.

        None if there is nothing to read: no such template exists, or its spec is known.
        """
        key = _own(pod)
        return key if key is not None and key in self.known and self.of(pod) is None else None

    def lacking_of(self, pod: Pod) -> Reason | None:
        """Return the reason why a pod waits for a missing template; None if none is missing.

        The template of the pod's GPUs is not checked here.
        """
        lacking = next((name for name in beside(pod) if (pod.metadata.namespace, name) not in self.known), None)
        return None if lacking is None else missing(lacking)

    def domain_of(self, pod: Pod) -> str | None:
        """Return the uid of the ComputeDomain whose channel a pod's templates request.

        None without such a request. A ComputeDomain is NVIDIA's object for pods joined by multi-node NVLink.
        """
        known = (self.known.get((pod.metadata.namespace, name)) for name in beside(pod))
        return next((one.domain for one in known if one is not None and one.domain is not None), None)

    def is_of_domain(self, template: Key) -> bool:
        """Return whether a template requests a channel of a ComputeDomain (multi-node NVLink)."""
        known = self.known.get(template)
        return known is not None and known.domain is not None

    def _keep(self, key: Key) -> None:
        """Keep a template's spec if it exists and a pod names the template.

        Otherwise the spec is dropped. A spec never changes, so it is not read again.
        """
        known, kept = self.known.get(key), self._whole.pop(key, None)
        if known is None or key not in self._named_by:
            return
        whole = known if known.spec is not None else kept
        if whole is not None and whole.metadata.uid == known.metadata.uid:
            self._whole[key] = self._by_classes(whole)

    def set_nic_classes(self, classes: Mapping[str, str]) -> list[Key]:
        """Set the DeviceClasses that select NICs, each with the short name of its NIC driver.

        Returns:
            The templates whose requests may be different now.
        """
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
    """Return the reason to show for a pod whose ResourceClaimTemplate is missing."""
    text = (
        f"Waiting for ResourceClaimTemplate {shown(template)}, which does not exist. Create it in the pod's namespace."
    )
    return Reason(Cause.POD, text)


def beside(pod: Pod) -> tuple[str, ...]:
    """Return the templates that a pod names in addition to its GPUs' template."""
    entries = pod.spec.resource_claims
    return tuple([e.resource_claim_template_name for e in entries if e.resource_claim_template_name
                 and e.name != names.POD_CLAIM])  # fmt: skip


def _own(pod: Pod) -> Key | None:
    """Return the key of the template of a waiting pod's GPUs; None for none."""
    return (pod.metadata.namespace, pod.template[1]) if pod.template is not None and _waits(pod) else None


def _named(pod: Pod | None) -> tuple[Key, ...]:
    """Return the templates whose changes concern a pod.

    For a waiting pod these are all templates that it names. For a bound pod these are only its templates in addition to
    the one of its GPUs. Empty for None, and for a pod that has ended.
    """
    if pod is None or pod.finished:
        return ()
    own = _own(pod)
    others = tuple((pod.metadata.namespace, name) for name in beside(pod))
    return others if own is None else (own, *others)


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.finished)
