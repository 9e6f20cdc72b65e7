"""What other vendors' GPUs say of themselves, and what the scheduler alone is asked of them."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from dradriver.allocator.request import Constraint, Share, Whole
from dradriver.api.base import names
from dradriver.api.base.allocating_driver import NVIDIA, OURS
from dradriver.api.base.errors import WordError
from dradriver.api.pod import claim_alternatives, resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.gpu_modes import Mode
from dradriver.api.policies.policies_reader import read
from dradriver.api.slices import resource_slices
from dradriver.api.slices.device_attributes import MOST_SAID
from dradriver.api.vocabulary import values
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import VENDORS
from tests.effort import sampled
from tests.fakes.kfd import on_boards

MODES = [
    Mode(),
    Mode(shared="mps", exclusive_to="namespace"),
    Mode(shared="mps", equal_shares=4, exclusive_to="namespace"),
    Mode(mig="dynamic", exclusive_to="namespace"),
    Mode(mig="placements", exclusive_to="namespace"),
]
OTHERS = [name for vendor in VENDORS.values() if vendor.word != "nvidia" for name in profiles.names(vendor.word)]


def telling(machine: Machine) -> Machine:
    """Return the machine with all that one may say of its GPUs."""
    gpus = tuple(
        msgspec.structs.replace(
            gpu,
            fabric="6bcd.1",
            numa=0,
            board="AMD Instinct" if gpu.vendor == "amd" else "",
            pci=gpu.pci or f"0000:{at:02x}:00.0",
            pcie_root="pci0000:00",
        )
        for at, gpu in enumerate(machine.gpus)
    )
    return msgspec.structs.replace(machine, gpus=gpus, driver_version="580.95.05")


def devices(machine: Machine, mode: Mode | None = None) -> list[dict[str, Any]]:
    modes = {} if mode is None else {gpu.uuid: mode for gpu in machine.gpus}
    built = resource_slices.build(machine, node="n", node_uid="u", modes=modes)
    return [device for piece in built for device in piece["spec"].get("devices", ())]


@pytest.mark.parametrize("name", sampled([*profiles.names("nvidia"), *OTHERS], fast=6))
def test_no_device_says_more_than_the_server_takes(name: str) -> None:
    """ResourceSliceMaxAttributesAndCapacitiesPerDevice; a slice with one such device is refused as a whole."""
    machine = telling(profiles.load(name, seed="n"))
    for mode in MODES:
        for device in devices(machine, mode):
            assert len(device["attributes"]) + len(device.get("capacity", ())) <= MOST_SAID == 32


@pytest.mark.parametrize("name", sampled([*profiles.names("nvidia"), *OTHERS], fast=6))
def test_whole_gpus_say_of_links_by_names_of_no_vendor_what_they_say_by_those_of_nvlink(name: str) -> None:
    machine = profiles.load(name, seed="n")
    for device in devices(machine):
        said = device["attributes"]
        assert said["vendor"] == {"string": machine.vendor.word}
        twins = {"Domain", *(f"Group{size}{what}" for size in (2, 4, 8) for what in ("", "GBps"))}
        for twin in twins:
            assert said.get(f"link{twin}") == said.get(f"nvlink{twin}"), twin
        assert any(key.endswith("GBps") for key in said) <= machine.vendor.rated


@pytest.mark.parametrize("name", sampled(OTHERS, fast=3))
def test_classes_of_releases_that_knew_no_vendor_select_nvidias_alone(name: str) -> None:
    """They select ``type == "gpu"``, and are back after a rollback, while slices of newer agents are still there."""
    assert all(device["attributes"]["type"]["string"] != "gpu" for device in devices(profiles.load(name, seed="n")))
    assert {device["attributes"]["type"]["string"] for device in devices(profiles.load("hgx-h100", seed="n"))} == {
        "gpu"
    }


def test_a_gpu_that_may_be_had_in_parts_has_no_room_for_the_other_names() -> None:
    for mode in MODES[1:]:
        for device in devices(profiles.load("hgx-h100", seed="n"), mode):
            assert not any(key.startswith("link") for key in device["attributes"])


def test_on_eight_gpus_of_a_fabric_only_the_rates_are_missing() -> None:
    said = devices(telling(profiles.load("hgx-h100", seed="n")))[0]["attributes"]
    assert {key for key in said if key.startswith("link")} == {"linkDomain", "linkGroup2", "linkGroup4", "linkGroup8"}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_nothing_of_cuda_is_said_of_other_vendors_gpus(name: str) -> None:
    for device in devices(profiles.load(name, seed="n")):
        assert not any("cuda" in key.lower() for key in device["attributes"])


@pytest.mark.parametrize("mode", MODES)
def test_other_vendors_gpus_are_whole_under_any_policies(mode: Mode) -> None:
    machine = profiles.load("mi210-x8", seed="n")
    assert devices(machine, mode) == devices(machine)


def test_linked_is_nvlink_by_another_name() -> None:
    for said in ("linked", "nvlink", "nvlink-domain"):
        for key in ("required", "preferred"):
            asked = Annotations({names.PREFIX + key: said}).request({"main": 2})
            assert getattr(asked, key) == (Constraint.NVLINK,)
    one, other = (Annotations({names.POLICY: name}).request({"main": 2}) for name in ("linked,pack", "nvlink,pack"))
    assert one == other
    assert values.CONSTRAINTS["linked"] is Constraint.NVLINK


def test_a_policy_that_a_file_calls_linked_stays_what_the_file_says() -> None:
    policies = read(b"policies: {linked: {required: same-numa}}", source="x")
    asked = Annotations({names.POLICY: "linked"}, policies).request({"main": 2})
    assert isinstance(asked, Whole)
    assert asked.required == (Constraint.SAME_NUMA,)


def spec(gpus: int, **words: str) -> dict[str, Any]:
    said = {names.PREFIX + word.replace("_", "-"): text for word, text in words.items()}
    made: dict[str, Any] = claim_alternatives.spec(resolved.resolve(Annotations(said), {"main": gpus}))["devices"]
    return made


def test_the_scheduler_alone_finds_amds_products_by_the_name_of_the_board_or_of_the_part() -> None:
    of = 'device.attributes["gpu.topology"]'
    (request,) = spec(1, vendor="amd", product="AMD Instinct MI300X")["requests"]
    (selector,) = request["exactly"]["selectors"]
    assert selector["cel"]["expression"] == (
        f'(has({of}.productName) && {of}.productName == "AMD Instinct MI300X") || '
        f'(has({of}.boardName) && {of}.boardName == "AMD Instinct MI300X")'
    )


def test_a_device_says_what_part_it_is_and_the_boards_name() -> None:
    machine = profiles.load("mi300x-x8")
    said = [devices(one)[0]["attributes"] for one in (machine, on_boards(machine))]
    assert [one["productName"]["string"] for one in said] == ["AMD Instinct MI300X", "AMD Instinct MI300X"]
    assert [one.get("boardName") for one in said] == [None, {"string": "AMD Instinct MI300X OAM"}]


@pytest.mark.parametrize("vendor", VENDORS.values(), ids=lambda vendor: vendor.word)
def test_the_scheduler_alone_is_asked_by_the_class_of_the_vendor(vendor: Any) -> None:
    made = spec(4, vendor=vendor.word, required="linked")
    (request,) = made["requests"]
    assert request["exactly"]["deviceClassName"] == vendor.device_class
    assert made["constraints"] == [{"requests": ["main"], "matchAttribute": "gpu.topology/nvlinkGroup4"}]
    ladder_of = spec(4, vendor=vendor.word)["requests"][0]["firstAvailable"]
    assert {rung["deviceClassName"] for rung in ladder_of} == {vendor.device_class}


def test_the_scheduler_is_told_of_rates_where_there_are_any() -> None:
    for gpus, attribute in ((4, "nvlinkGroup4GBps"), (3, "nvlinkGroup4AnyGBps")):
        (selector,) = spec(gpus, vendor="amd", min_bandwidth="50")["requests"][0]["exactly"]["selectors"]
        assert f".?{attribute}.orValue(0) >= 50" in selector["cel"]["expression"]
    with pytest.raises(WordError, match=r"nvlink of 3 GPUs of ascend .*Request 4 GPUs"):
        spec(3, vendor="ascend", required="linked")


def test_a_note_that_was_changed_into_parts_of_another_vendors_is_refused() -> None:
    plain = msgspec.json.decode(resolved.write(resolved.resolve(Annotations({names.SHARE: "0.5"}), {"main": 1})))
    plain["request"]["vendor"] = "amd"
    with pytest.raises(WordError, match="fractions of GPUs that cannot be divided"):
        resolved.read({names.REQUEST: msgspec.json.encode(plain).decode()})
    whole = msgspec.json.decode(resolved.write(resolved.resolve(Annotations({}), {"main": 1}, vendor="amd")))
    for changed in (whole | {"vendor": "nvidia"}, whole | {"vendor": "ascend"}):
        with pytest.raises(WordError, match="its vendor differs from the vendor that the limits name"):
            resolved.read({names.REQUEST: msgspec.json.encode(changed).decode()})


def test_a_note_of_before_is_about_nvidias() -> None:
    for words, kind in (({}, Whole), ({names.SHARE: "0.5"}, Share)):
        noted = resolved.resolve(Annotations(words), {"main": 1})
        assert isinstance(noted.request, kind)
        text = resolved.write(noted)
        assert "vendor" not in text
        assert resolved.read({names.REQUEST: text}).request.vendor == "nvidia"


def test_classes_say_whose_gpus_they_are() -> None:
    assert dict(OURS.vendor_of) == {vendor.device_class: vendor.word for vendor in VENDORS.values()}
    assert dict(NVIDIA.vendor_of) == {"gpu.nvidia.com": "nvidia"}
    assert [ledger.class_of("nvidia") for ledger in (OURS, NVIDIA)] == ["gpu.topology", "gpu.nvidia.com"]
    assert len(set(itertools.chain.from_iterable(vendor.resources for vendor in VENDORS.values()))) == sum(
        len(vendor.resources) for vendor in VENDORS.values()
    )
