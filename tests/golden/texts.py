"""The texts, made by the code as it is; what differs from run to run has a name in its place."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from click.testing import CliRunner

from dradriver.allocator.request import Amount
from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.gangs import gang_of_pod, gang_size_of_owner
from dradriver.api.gangs.gang_annotations import Gang
from dradriver.api.gangs.gang_owners import Member
from dradriver.api.pod import resolved
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.gpu_modes import Mode
from dradriver.cli.main import main
from tests.contract import built
from tests.fakes import owners
from tests.fakes.commands import command_line, run_all
from tests.fakes.failing import FailingGpus
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.node import device, result, uuid
from tests.fakes.slicing import QUARTER, Sliced, at, pin, some

FOLDER: Final = Path(__file__).parent / "files"
KUBERNETES: Final = "1.36.3"
_WHOLE_BYTES: Final = 40_000  # of a kind of object; of more only digests are kept
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_RANDOM: Final = re.compile(r"\bgpus-[0-9a-z]{10}\b")
_CHECKSUM: Final = re.compile(r"\b[0-9a-f]{64}\b")
_GANGS: Final[tuple[dict[str, str], ...]] = (
    {"gang": "auto"},
    {"gang": "train", "gang-size": "8"},
    {"gang-size": "4-8", "near": "leaf", "on-member-loss": "restart"},
    {"gang": "auto", "near": "preferred rack", "on-member-loss": "replace"},
    {"max-nodes": "2", "min-gpus-per-node": "4", "multi-node-policy": "pack", "min-network-bandwidth": "50GB/s"},
    {"gang": "auto", "min-driver": "580"},
)
_OFFLINE: Final[Mapping[str, tuple[str, ...]]] = {
    "topo": ("topo", "-m", "hgx-h100"),
    "topo of links and NICs": ("topo", "-m", "dgx1-v100"),
    "plan": ("plan", "-m", "dgx-h100", "--gpus", "4", "--policy", "nvlink"),
    "plan, some free": ("plan", "-m", "dgx1-v100", "--gpus", "3", "--free", "0,1,4,5,7"),
    "slices": ("slices", "-m", "l40s-x8"),
}


def everything(*, whole: bool = False) -> dict[str, str]:
    """Return all texts by file name; of kinds of objects with much text only digests, unless ``whole``."""
    return {
        "objects.json": _text({kind: _kept(objects, whole=whole) for kind, objects in _objects().items()}),
        "ledgers.json": _text(asyncio.run(_ledgers())),
        "commands.json": _text(asyncio.run(_commands())),
        "gangs.json": _text(_gangs()),
    }


def _objects() -> dict[str, list[Any]]:
    """Objects but the chart's, which no code of the driver makes, and those that need more than the repository."""
    left_out = ("chart", "pods of the field")
    kinds = {kind: build for kind, build in built.BUILDERS.items() if not kind.startswith(left_out)}
    return {kind: _named(build(KUBERNETES)) for kind, build in kinds.items()}


def _kept(objects: list[Any], *, whole: bool) -> Any:
    if whole or len(json.dumps(objects)) <= _WHOLE_BYTES:
        return objects
    return [
        f"{one['metadata'].get('name', number)} sha256:{hashlib.sha256(_text(one).encode()).hexdigest()}"
        for number, one in enumerate(objects)
    ]


async def _ledgers() -> dict[str, Any]:
    """What a node has on disk for claims of whole GPUs, shares and MIG slices, one of them half given back."""
    with tempfile.TemporaryDirectory() as folder:
        node = Sliced(Path(folder))
        (node.folder / "driver").write_text("1")
        await node.prepare("whole", result("main", device(3)), result("side", device(4)))
        await node.prepare("share", result("gpu", device(2), shareID="s", **QUARTER))
        await node.prepare("placement", at(0, "3g.40gb", 4))
        await node.prepare("slices", some(1, 4, 3, "t"), config=[pin("3g.40gb", {1: 0})])
        await node.prepare("left", at(5, "3g.40gb", 4))
        refusing = FailingGpus(node.folder / "hardware.json", node.gpu)
        refusing.failing[uuid(5)] = ("gpu_instances", 999, "Unknown Error")
        node.device_manager = node.kinds(refusing)
        await node.preparer().unprepare("uid-left")
        return _on_disk(Path(folder))


def _gangs() -> dict[str, Any]:
    """The notes of pods with words about gangs, and which gang each pod is of by what made it."""
    notes = {
        ", ".join(f"{key}: {text}" for key, text in words.items()): json.loads(
            resolved.write(
                resolved.resolve(Annotations({names.PREFIX + key: text for key, text in words.items()}), {"main": 4})
            )
        )
        for words in _GANGS
    }
    found = {
        name: [_member(pod, story.owner) for pod in (*story.pods, *story.others)]
        for name, story in ((name, build()) for name, build in owners.STORIES.items())
    }
    return {"notes": notes, "members": found}


def _member(pod: Any, owner: Any) -> Any:
    found = gang_of_pod.find(gang_of_pod.facts(msgspec.convert(pod, Pod)), Gang(name="auto"))
    told = msgspec.to_builtins(found)
    if isinstance(found, Member) and found.read is not None and found.read.name == owner["metadata"]["name"]:
        told["size by what made it"] = gang_size_of_owner.size_from(found.read, owner)
    return {pod["metadata"]["name"]: told}


def _on_disk(folder: Path) -> dict[str, Any]:
    """Return every file of JSON below a folder but what simulated hardware is."""
    paths = (path for path in sorted(folder.rglob("*.json")) if path.name != "hardware.json")
    text = json.dumps({str(path.relative_to(folder)): json.loads(path.read_text()) for path in paths})
    found: dict[str, Any] = json.loads(_CHECKSUM.sub("<checksum>", text.replace(str(folder), "<folder>")))
    return found


async def _commands() -> dict[str, Any]:
    found = {name: _offline(*words) for name, words in _OFFLINE.items()}
    cluster = GpuCluster()
    with tempfile.TemporaryDirectory() as folder:
        async with command_line(cluster.store, Path(folder)) as shell:
            cluster.node("n1")
            cluster.node("n2", "hgx-h100", mode=Mode(mig="dynamic"))
            cluster.node("n3", "l40s-x8", mode=Mode(shared="mps"))
            cluster.rival("hand", "n1", [6])
            h100 = {"product": "NVIDIA H100*"}  # else they take the GPUs of n1, which are had whole alone
            cluster.pod("four", 4, wishes=h100)
            cluster.pod("two", {"main": 1, "side": 1}, wishes=h100)
            cluster.pod("share", {"main": Amount(25, 4096)})
            await run_all(cluster)
            cluster.pod("many", 8, namespace="team")
            cluster.pod("more", 16)
            await run_all(cluster)
            for command in ("topo --cluster", "free", "explain -A"):
                found[command] = await shell.data(command)
    named: dict[str, Any] = _named(found)
    return named


def _offline(*words: str) -> Any:
    outcome = CliRunner().invoke(main, [*words, "-o", "json"])
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def _named(value: Any) -> Any:
    """Return the value with what differs from run to run replaced by names, the same for the same."""
    known: dict[str, str] = {}
    text = _TIME.sub("<time>", json.dumps(value))
    return json.loads(_RANDOM.sub(lambda match: known.setdefault(match[0], f"<random {len(known)}>"), text))


def _text(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
