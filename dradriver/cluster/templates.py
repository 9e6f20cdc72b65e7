"""What is known of ResourceClaimTemplates: that they are there, and the specs of those that waiting pods name."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dradriver.api.pins import Key
from dradriver.api.pods import Pod
from dradriver.api.policies.model import DEFAULTS
from dradriver.api.templates import Template


class Templates:
    """Templates, and the waiting pods of ours by those that they name.

    Attributes:
        known: All templates, by namespace and name; without their specs, unless whoever told of them had those.
        nic_classes: DeviceClasses of NICs, each with its driver's word, by which the whole ones are read.
    """

    def __init__(self) -> None:
        self.known: dict[Key, Template] = {}
        self.nic_classes: Mapping[str, str] = DEFAULTS.nics.every
        self._whole: dict[Key, Template] = {}
        self._named_by: dict[Key, set[Key]] = {}

    def changed(self, key: Key, new: Template | None) -> None:
        """Take in a template as a reflector shows it."""
        if new is None:
            self.known.pop(key, None)
        else:
            self.known[key] = new
        self._keep(key)

    def read(self, key: Key, template: Template | None) -> None:
        """Take in a whole template, None where it is not there, as the API server gave it to somebody who asked."""
        if template is None:
            self.known.pop(key, None)
        elif key in self._named_by:
            self._whole[key] = self._by_classes(template)
            self.known[key] = msgspec.structs.replace(template, spec=None)

    def pod_changed(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        """Take in what a pod of ours was and is."""
        before, after = _named(old), _named(new)
        if before == after:
            return
        if before is not None:
            self._named_by[before].discard(key)
            if not self._named_by[before]:
                del self._named_by[before]
            self._keep(before)
        if after is not None:
            self._named_by.setdefault(after, set()).add(key)

    def pods(self, key: Key) -> list[Key]:
        """Return the waiting pods that name a template."""
        return sorted(self._named_by.get(key, ()))

    def of(self, pod: Pod) -> Template | None:
        """Return the whole template that a waiting pod names; None for none, or one that is not there or not read."""
        key = _named(pod)
        if key is None:
            return None
        template = self._whole.get(key) or self.known.get(key)
        return None if template is None or template.spec is None else self._by_classes(template)

    def unread_of(self, pod: Pod) -> Key | None:
        """Return the template that a waiting pod names if it is there and its spec has to be read."""
        key = _named(pod)
        return key if key is not None and key in self.known and self.of(pod) is None else None

    def _keep(self, key: Key) -> None:
        """Keep a spec, which never changes, for as long as its template is there and a waiting pod names it."""
        known, kept = self.known.get(key), self._whole.pop(key, None)
        if known is None or key not in self._named_by:
            return
        whole = known if known.spec is not None else kept
        if whole is not None and whole.metadata.uid == known.metadata.uid:
            self._whole[key] = self._by_classes(whole)

    def set_nic_classes(self, classes: Mapping[str, str]) -> list[Key]:
        """Read templates by these classes from now on. Returns those that may ask for something else by them."""
        if classes == self.nic_classes:
            return []
        self.nic_classes = classes
        self._whole = {key: self._by_classes(template) for key, template in self._whole.items()}
        return sorted(self._whole)

    def _by_classes(self, template: Template) -> Template:
        if template.nic_classes is self.nic_classes:
            return template
        return msgspec.structs.replace(template, nic_classes=self.nic_classes)


def _named(pod: Pod | None) -> Key | None:
    if pod is None or pod.template is None or pod.spec.node_name or pod.finished:
        return None
    return pod.metadata.namespace, pod.template[1]
