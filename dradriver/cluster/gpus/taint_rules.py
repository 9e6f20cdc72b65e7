"""DeviceTaintRules: devices that they taint are removed from the slices, as if a slice tainted them.

A rule selects devices by driver, pool and device name (resource.k8s.io/v1, v1beta2, and v1alpha3 of Kubernetes 1.35).
In Kubernetes 1.34 a rule can also select by device class or CEL, which only the scheduler evaluates. Such a rule has no
effect here.

A driver publishes the devices of a node in a *pool* of slices.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Mapping

import msgspec

from dradriver.api.base.objects import Metadata, Taint
from dradriver.cluster.records.slice_records import SliceRecord
from dradriver.kube import codec
from dradriver.kube.reflector import Change

logger = logging.getLogger(__name__)

_Where = tuple[str, str]  # pool and device, empty for any


class TaintRule(msgspec.Struct, frozen=True):
    """A DeviceTaintRule that keeps new claims from devices.

    Attributes:
        metadata: Metadata without labels and annotations.
        taint: The taint that the rule sets.
        driver: The driver whose devices it selects; empty for any.
        pool: The pool whose devices it selects; empty for any.
        device: The device name that it selects; empty for any.
        strange: Whether it also selects by device class or CEL, which is not evaluated here.
    """

    metadata: Metadata
    taint: Taint
    driver: str = ""
    pool: str = ""
    device: str = ""
    strange: bool = False

    def about(self, driver: str, pool: str) -> bool:
        """Return whether the rule selects devices of a driver's pool.

        These are all devices of the pool, or the devices with the rule's device name.
        """
        return self.driver in ("", driver) and self.pool in ("", pool)


class _Selector(msgspec.Struct, rename="camel", frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    device_class_name: str | None = None
    selectors: list[msgspec.Raw] | None = None


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    device_selector: _Selector | None = None
    taint: Taint = Taint()


class _Rule(msgspec.Struct):
    metadata: Metadata
    spec: _Spec = _Spec()


def read_rule(data: msgspec.Raw) -> TaintRule | None:
    """Return the fields that the cluster cache keeps of a DeviceTaintRule.

    None if the rule's taint does not keep claims from devices, or if the rule has no device selector.

    Raises:
        BadJson: The JSON is not a DeviceTaintRule.
    """
    rule: _Rule = codec.decode(data, _Rule)
    selector = rule.spec.device_selector
    if selector is None or not rule.spec.taint.blocks:
        return None
    return TaintRule(
        metadata=rule.metadata.bare,
        taint=rule.spec.taint,
        driver=selector.driver or "",
        pool=selector.pool or "",
        device=selector.device or "",
        strange=bool(selector.device_class_name or selector.selectors),
    )


class TaintRules:
    """All taint rules, and all slices of GPUs without the devices that the rules taint."""

    def __init__(self) -> None:
        self._slices: dict[str, SliceRecord] = {}  # as published
        self._of_pool: collections.defaultdict[str, set[str]] = collections.defaultdict(set)
        self._rules: dict[_Where, dict[str, TaintRule]] = {}
        self._tainting: dict[str, frozenset[str]] = {}  # names of the rules that taint devices of a slice
        self._tainted: collections.Counter[str] = collections.Counter()  # of how many slices, by the rule's name

    def slice_changed(self, change: Change[SliceRecord]) -> Change[SliceRecord]:
        """Record a changed slice, and return the change without the tainted devices of the new slice."""
        name = change.key[1]
        for piece in (change.old, change.new):
            if piece is None:
                continue
            self._of_pool[piece.pool].discard(name)
            if piece is change.new:
                self._of_pool[piece.pool].add(name)
                self._slices[name] = piece
            if not self._of_pool[piece.pool]:
                del self._of_pool[piece.pool]
        if change.new is None:
            self._slices.pop(name, None)
            self._taint(name, frozenset())
            return change
        return Change(change.key, change.old, self._taken(change.new))

    def rule_changed(self, change: Change[TaintRule]) -> list[Change[SliceRecord]]:
        """Update the taint rules with a changed rule.

        Returns:
            The changes of the slices that the rule concerns, without tainted devices.
        """
        concerned: set[str] = set()
        if change.old is not None:
            where = change.old.pool, change.old.device
            self._rules.get(where, {}).pop(change.key[1], None)
            if not self._rules.get(where, True):
                del self._rules[where]
            concerned |= self._matched(change.old)
        if change.new is not None and change.new.strange:
            logger.warning(
                "DeviceTaintRule %s selects devices by a class or by CEL, which only kube-scheduler "
                "evaluates. Pods that the controller places on these devices are never bound. Write "
                "driver, pool and device in the rule instead.",
                change.key[1],
            )
        elif change.new is not None:
            self._rules.setdefault((change.new.pool, change.new.device), {})[change.key[1]] = change.new
            concerned |= self._matched(change.new)
        return [Change(("", name), self._slices[name], self._taken(self._slices[name])) for name in sorted(concerned)]

    def left(self, piece: SliceRecord) -> SliceRecord:
        """Return a slice without the devices that taint rules keep from claims."""
        return _without(piece, self._tainted_of(piece))

    def over(self, driver: str, pool: str, device: str) -> list[TaintRule]:
        """Return the taint rules that taint a device, given by driver, pool and device name."""
        if not self._rules:
            return []
        wheres = ((place, one) for place in (pool, "") for one in (device, ""))
        every = (rule for where in wheres for rule in self._rules.get(where, {}).values())
        return [rule for rule in every if rule.about(driver, pool)]

    def tainting(self) -> list[str]:
        """Return the names of the taint rules that keep usable devices from claims, sorted."""
        return sorted(self._tainted)

    def _matched(self, rule: TaintRule) -> set[str]:
        """Return the names of the ResourceSlices with at least one usable device that a rule taints."""
        names: Iterable[str] = self._of_pool.get(rule.pool, ()) if rule.pool else self._slices
        every = ((name, self._slices[name]) for name in names)
        return {
            name
            for name, piece in every
            if rule.about(piece.driver, piece.pool) and (rule.device in piece.usable if rule.device else piece.usable)
        }

    def _taken(self, piece: SliceRecord) -> SliceRecord:
        """Return a ResourceSlice without tainted devices, and record which rules taint them."""
        if not self._rules and not self._tainting:
            return piece
        tainted = self._tainted_of(piece)
        self._taint(piece.metadata.name, frozenset(rule for rules in tainted.values() for rule in rules))
        return _without(piece, tainted)

    def _tainted_of(self, piece: SliceRecord) -> dict[str, list[str]]:
        """Return the tainted usable devices of a slice, each with the names of its rules."""
        every = ((device, self.over(piece.driver, piece.pool, device)) for device in piece.usable)
        return {device: [rule.metadata.name for rule in rules] for device, rules in every if rules}

    def _taint(self, name: str, rules: frozenset[str]) -> None:
        """Record the names of the rules that taint devices of a slice."""
        before = self._tainting.pop(name, frozenset())
        self._tainted.update(rules - before)
        for rule in before - rules:
            self._tainted[rule] -= 1
            if not self._tainted[rule]:
                del self._tainted[rule]
        if rules:
            self._tainting[name] = rules


def _without(piece: SliceRecord, tainted: Mapping[str, object]) -> SliceRecord:
    return msgspec.structs.replace(piece, usable=piece.usable - tainted.keys()) if tainted else piece
