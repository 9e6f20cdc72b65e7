"""Nothing that somebody else wrote can stop the node agent: the kernel's log, and CDI specifications."""

from __future__ import annotations

import random
from pathlib import Path

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dradriver.node.health.kernel_log import KernelLog
from dradriver.node.vendors.nvidia.discovery.cdi_specifications import Specification
from dradriver.node.vendors.nvidia.xid_reports import XidReports
from tests.effort import examples
from tests.fakes.node import machine
from tests.fakes.toolkit import specification

XID = b"4,12345,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SXID = b"4,12345,1000000,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
TEXT = yaml.safe_dump(specification(machine())).encode()


def damaged(text: bytes, seed: int) -> bytes:
    """The text with a few bytes changed, doubled, moved or gone."""
    chance = random.Random(seed)
    out = bytearray(text)
    for _ in range(chance.randrange(1, 8)):
        at = chance.randrange(len(out))
        what = chance.randrange(4)
        if what == 0:
            out[at] = chance.choice(b"\x00\xff{}[]&*!:-0\n\t\"'")
        elif what == 1:
            del out[at : at + chance.randrange(1, 20)]
        elif what == 2:
            out[at:at] = out[at : at + 20]
        else:
            out[at:at] = bytes(
                chance.choice(
                    [
                        b"!!binary x",
                        b"2026-99-99",
                        b"&a *a",
                        b"9" * 5000,
                        b"\n- ",
                        b"? {}",
                        b"!!bool x",
                        b"!!timestamp x",
                    ]
                )
            )
        if not out:
            break
    return bytes(out)


@given(
    record=st.one_of(
        st.binary(max_size=300),
        st.builds(damaged, st.sampled_from((XID, SXID)), st.integers(0, 1 << 30)),
    )
)
@settings(max_examples=examples(500), deadline=None)
def test_any_record_of_the_kernels_log_is_taken_or_passed_over(record: bytes) -> None:
    log = KernelLog(Path("/none"), XidReports())
    log.take(record)
    found = log.reports.faults({"0000:3b:00.0": "GPU-a"})
    assert all(fault.value.isascii() and fault.value.isdigit() for some in found.values() for fault in some)


@given(seed=st.integers(0, 1 << 30), json=st.booleans())
@example(seed=7349053, json=False)  # a node named nvidia4 that is not below /dev
@settings(max_examples=examples(300), deadline=None)
def test_any_specification_names_gpus_as_they_are_or_is_refused(seed: int, json: bool) -> None:
    whole = machine()
    try:
        found = Specification("x", damaged(TEXT, seed), json=json, host_root=Path("/"), on_paper=True)
    except ValueError:
        return
    Specification("x", damaged(TEXT, seed), json=json, host_root=Path("/")).devices(whole.gpus, whole.driver_version)
    devices, wrong = found.devices(whole.gpus, whole.driver_version)
    assert devices.keys() | wrong.keys() == {gpu.uuid for gpu in whole.gpus}
    for gpu in whole.gpus:
        if gpu.uuid in devices:
            paths = [node["path"] for node in devices[gpu.uuid]["containerEdits"]["deviceNodes"]]
            assert f"/dev/nvidia{gpu.minor}" in paths
            others = {f"/dev/nvidia{other.minor}" for other in whole.gpus} - {f"/dev/nvidia{gpu.minor}"}
            assert not others & set(paths)
