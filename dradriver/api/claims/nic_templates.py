"""The requests for NICs in a ResourceClaimTemplate, and the selectors by which the claim pins the chosen NICs.

If the driver cannot read a request for NICs, the scheduler chooses these NICs, because it can read all requests. The
driver refuses the request only if the pod requires a property that only the driver's choice can give.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from dradriver.allocator.request import NEAR_REQUIRED
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.vocabulary import simple_cel, values
from dradriver.api.vocabulary.messages import shown
from dradriver.api.vocabulary.nic_requests import BY_WORD, DRIVERS, Alike, NicAsk, NicRequest, Tolerated, selector

_KNOWN_FIELDS: Final = {"deviceClassName", "allocationMode", "count", "selectors", "tolerations"}
_SHARED_WITH_GPUS: Final = {
    names.PCIE_ROOT,
    names.NUMA_NODE,
}  # attributes of GPUs that NICs may have in common with them


def is_for_nics(request: Mapping[str, Any], classes: Mapping[str, str]) -> bool:
    """Return whether a template's request, with all its alternatives, names only DeviceClasses of NICs.

    Args:
        request: An entry of the template's ``requests``.
        classes: The short name of the NICs' driver, by DeviceClass.
    """
    wanted = [request.get("exactly"), *(_listed(request.get("firstAvailable")))]
    named = [one.get("deviceClassName") for one in wanted if isinstance(one, dict)]
    return bool(named) and all(isinstance(name, str) and name in classes for name in named)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def divided(
    constraints: Sequence[dict[str, Any]], gpus: Sequence[str], nics: Collection[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a template's constraints in two lists: those for GPUs alone, and those about NICs.

    A constraint about NICs and all GPUs is in both lists. In the first list, it has only the names of the GPUs'
    requests.

    Args:
        constraints: The template's constraints.
        gpus: Names of its requests for GPUs.
        nics: Names of its requests for NICs.
    """
    if not nics:
        return list(constraints), []
    for_gpus: list[dict[str, Any]] = []
    about_nics: list[dict[str, Any]] = []
    for constraint in constraints:
        request_names = constraint.get("requests") or [*gpus, *nics]
        gpu_names = [name for name in gpus if name in request_names]
        if any(str(name).partition("/")[0] in nics for name in request_names):
            about_nics.append(constraint)
            # "All GPUs and the NICs have the same root" says also that all GPUs have the same root.
            if set(gpu_names) == set(gpus) and constraint.get("matchAttribute") in _SHARED_WITH_GPUS:
                for_gpus.append({"requests": gpu_names, "matchAttribute": constraint["matchAttribute"]})
        else:
            for_gpus.append(constraint)
    return for_gpus, about_nics


def ask(
    nic_entries: Mapping[str, Mapping[str, Any]],
    constraints: Sequence[Mapping[str, Any]],
    gpu_requests: Mapping[str, Mapping[str, Any]],
    classes: Mapping[str, str],
    *,
    near: str = "",
) -> NicAsk | None:
    """Return which NICs a ResourceClaimTemplate requests; None if it requests none.

    The result also names the requests that are left to the scheduler, each with the reason. These are requests that the
    driver cannot read, and requests that a constraint ties to one of those.

    Args:
        nic_entries: The template's requests for NICs, by name.
        constraints: Its constraints that are about NICs.
        gpu_requests: The ``exactly`` part of each of its requests for GPUs, by name.
        classes: The short name of the NICs' driver, by DeviceClass.
        near: ``required`` or ``preferred`` if the pod wants NICs near its GPUs; else empty.

    Raises:
        WordError: The template requests more devices than a claim can have, or the pod requires NICs that are left to
            the scheduler.
    """
    if not nic_entries:
        return None
    # 1. Requests that this driver cannot read, with the reason, by name.
    left_to_scheduler = dict(_unreadable(nic_entries))

    # 2. Constraints: devices that must have the same value of an attribute.
    same_attributes: list[Alike] = []
    for constraint in constraints:
        attribute = constraint.get("matchAttribute")
        # A constraint without names is about all requests. A name can be ``request/alternative``.
        request_names = tuple(
            str(name).partition("/")[0] for name in constraint.get("requests") or (*gpu_requests, *nic_entries)
        )
        gpu_names = [name for name in request_names if name in gpu_requests]

        # All NICs, or NICs and GPUs, must have the same value of an attribute that both kinds of devices have. If
        # several GPUs are named, they must be all: the controller knows such a property of the whole set only.
        if isinstance(attribute, str) and (not gpu_names or attribute in _SHARED_WITH_GPUS):
            gpu_count = sum(int(gpu_requests[name].get("count", 1)) for name in gpu_names)
            if gpu_count > 1 and set(gpu_names) != set(gpu_requests):
                raise WordError(
                    f"constraint {shown(attribute)} is about some of the GPUs. Write a request with count 1 for each "
                    f"GPU, or remove the constraint: the driver takes the NICs nearest to the GPUs in any case."
                )
            same_attributes.append(Alike(attribute, request_names))
            continue
        if gpu_names and isinstance(attribute, str):
            raise WordError(
                f"constraint {shown(attribute)} is about NICs and GPUs, and GPUs do not have this attribute. Remove "
                f"it: the driver takes the NICs nearest to the GPUs in any case."
            )

        # Constraints other than matchAttribute are not read: their requests are left to the scheduler.
        reason = f"only kube-scheduler can evaluate constraint {shown(str(constraint.get('distinctAttribute', '')))}"
        left_to_scheduler |= {
            name: left_to_scheduler.get(name, reason) for name in request_names if name in nic_entries
        }

    # 3. NICs that must be like NICs left to the scheduler cannot be chosen here either: repeat until nothing changes.
    has_changed = True
    while has_changed:
        has_changed = False
        for same_attribute in same_attributes:
            if any(name in left_to_scheduler for name in same_attribute.requests):
                newly_left = {
                    name: "it must be equal to another request that is left to the scheduler"
                    for name in same_attribute.requests
                    if name in nic_entries
                }
                has_changed = has_changed or not newly_left.keys() <= left_to_scheduler.keys()
                left_to_scheduler = newly_left | left_to_scheduler
    requests = tuple(
        _request(name, entry, classes) for name, entry in nic_entries.items() if name not in left_to_scheduler
    )

    # 4. A claim has a limited number of devices, of GPUs and NICs together.
    device_count = sum(request.count for request in requests) + sum(
        int(exactly.get("count", 1)) for exactly in gpu_requests.values()
    )
    if device_count > values.MOST_GPUS:
        raise WordError(
            f"the claim requests {device_count} devices. A claim can have at most {values.MOST_GPUS}. Use several pods."
        )
    if near == NEAR_REQUIRED and left_to_scheduler:
        name, reason = next(iter(left_to_scheduler.items()))
        raise WordError(
            f"{names.NEAR_NIC}: {near}: the driver cannot choose the NICs of request {shown(name)}: {reason}. Write "
            "another selector, or remove the annotation."
        )
    readable_constraints = tuple(
        same_attribute
        for same_attribute in same_attributes
        if not any(name in left_to_scheduler for name in same_attribute.requests)
    )
    return NicAsk(requests=requests, alike=readable_constraints, near=near, left=tuple(left_to_scheduler.items()))


def _unreadable(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each request for NICs that the driver cannot evaluate, with the reason.

    ``entries`` are the template's requests by name. The scheduler chooses these NICs instead.
    """
    for name, entry in entries.items():
        exactly = entry.get("exactly")
        if not isinstance(exactly, dict):
            yield name, "only kube-scheduler can try the alternatives of firstAvailable"
            continue
        unknown_fields = sorted(key for key in set(exactly) - _KNOWN_FIELDS if exactly[key])
        count = exactly.get("count", 1)
        if exactly.get("allocationMode", "ExactCount") != "ExactCount":
            yield name, "allocationMode All takes all NICs that fit"
        elif unknown_fields or not isinstance(count, int) or not 1 <= count <= values.MOST_GPUS:
            yield (
                name,
                f"only kube-scheduler can evaluate the field {shown(unknown_fields[0] if unknown_fields else 'count')}",
            )
        else:
            for text in _selectors(exactly):
                if simple_cel.read(text) is None:
                    yield name, f"only kube-scheduler can evaluate the selector {shown(text)}"
                    break


def _selectors(exactly: Mapping[str, Any]) -> tuple[str, ...]:
    every = _listed(exactly.get("selectors"))
    cels = [one.get("cel") if isinstance(one, dict) else None for one in every]
    return tuple(str(cel.get("expression", "")) if isinstance(cel, dict) else "" for cel in cels)


def _tolerations(exactly: Mapping[str, Any]) -> tuple[Tolerated, ...]:
    every = (one for one in _listed(exactly.get("tolerations")) if isinstance(one, dict))
    said = ([str(one.get(key) or "") for key in ("key", "operator", "value", "effect")] for one in every)
    return tuple((key, operator, value, effect) for key, operator, value, effect in said)


def _request(name: str, entry: Mapping[str, Any], classes: Mapping[str, str]) -> NicRequest:
    exactly = entry["exactly"]
    device_class = str(exactly["deviceClassName"])
    return NicRequest(
        name=name,
        device_class=device_class,
        driver=BY_WORD[classes[device_class]].name,
        count=int(exactly.get("count", 1)),
        selectors=_selectors(exactly),
        tolerations=_tolerations(exactly),
    )


def pinned(
    nics: NicAsk, entries: Mapping[str, dict[str, Any]], addresses: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """Yield a claim's requests for NICs: the template's requests, with a selector for the chosen NICs added.

    The added selector is the first one, and the scheduler evaluates selectors in order. So it evaluates the author's
    selectors only for the chosen NICs. On other NICs they could fail, because they may read attributes that only some
    NICs have.

    Args:
        nics: What the template requests, as ``ask`` returns it.
        entries: The template's requests for NICs, by name.
        addresses: The chosen NICs' PCI addresses, by request.
    """
    drivers = {request.name: DRIVERS[request.driver] for request in nics.requests}
    for name, entry in entries.items():
        if not addresses.get(name):
            yield entry
            continue
        exactly = entry["exactly"]
        pin = {"cel": {"expression": selector(drivers[name], addresses[name])}}
        yield entry | {"exactly": exactly | {"selectors": [pin, *(exactly.get("selectors") or ())]}}
