"""Damaged input for every parser: ``python -m tests.bench.fuzz [--inputs N] [--seed S]``.

Real files and our own writers' texts are cut, doubled, mixed and sprinkled with the letters that each form is made of.
A parser may refuse what comes out with our own error; any other exception is a defect, and is shown with the input.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from yaml import safe_dump

from dradriver.api.policies import policies_reader as policies
from dradriver.api.policies.policies_reader import PoliciesError
from dradriver.api.policies.policy_sections import plain
from dradriver.cli.linter.admission_results import results
from dradriver.cli.linter.manifest_documents import Document, DocumentError, documents
from dradriver.kube import config
from dradriver.kube.errors import ConfigError
from dradriver.topology import machine_codec, nccl, profiles, topo_m
from dradriver.topology.amd import smi
from dradriver.topology.ascend import npu_smi_matrix, npu_smi_table
from dradriver.topology.errors import TopologyError
from dradriver.topology.load import read_machine
from dradriver.topology.machine import Machine
from dradriver.topology.profiles import profile_reader
from tests.paths import REPO, SHARED_DATA
from webhook.admission import Admission

T = TypeVar("T")
PROFILES = REPO / "dradriver" / "topology" / "profiles"
_WEBHOOK = Admission(controller_user="")
INPUTS = 100_000
_SHORT = 1_800  # letters: machines of few GPUs, so that many texts are tried
_MOST_SAID = 3_000  # letters of a message
_BEFORE = ("> ", "| ", "- ", "  ", "2026-01-01T00:00:00.000000001Z ", "[pod/a-0/b] ", "\x1b[4m", '"', "\xa0")
_POLICIES = """policies:
  spread: {strategy: spread, nccl: off}
tenants:
  vision: {namespaces: [vision], weight: 2, cap: [{gpus: 16}]}
network: {levels: [example.com/leaf]}
"""
_KUBECONFIGS = [
    """kind: Config
current-context: here
contexts:
- name: here
  context: &c {cluster: c, user: u, namespace: ns}
- {name: 7, context: *c}
clusters:
- name: c
  cluster: {server: "https://example.org:6443/", certificate-authority-data: QQ==, insecure-skip-tls-verify: true}
users:
- name: u
  user: {client-key-data: QQ==, exec: {command: aws, args: [get-token], env: null}}
""",
    '{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "b"}}], '
    '"clusters": [{"name": "b", "cluster": {"server": "http://10.0.0.1", "tls-server-name": "x"}}]}',
]
_NAMES = ("dgx1-v100", "hgx-h100-degraded", "a100-pcie-x8-bridge-pairs", "rtx-a6000-x4-pairs", "gb200-nvl72-tray")
_PIECES = (
    *"\t\n\r \0\x1b<>/='\"[]{}:,.-_&;#!?*0123456789abcfxXNVGPUISYé",
    *("GPU0", "NIC1", "NV18", "SYS", "SYSSYS", " X ", "N/A", "0-1", "0,2-17", "-1", "9" * 20, "1e999", "null", "true"),
    *("NaN", "\ud800", "<!--", "-->", "<?xml", "/>", "</pci>", "<gpu>", "<pci ", 'busid="', 'count="', "ffff:ff:01.0"),
    *("fffffff:ffff:ff", "- ", ": ", "&a ", "*a", "!!python/object", "{", "[[", "]]", "\ufeff"),
)


class Parser(msgspec.Struct):
    """One parser, texts that it reads, and what became of the damaged ones."""

    name: str
    read: Callable[[str], object]
    corpus: list[str]
    damage: Callable[[Sequence[str], random.Random], str] | None = None
    accepted: int = 0
    refused: int = 0


def parsers() -> list[Parser]:
    """Return every parser with its corpus; real files are added where they are at hand."""
    machines = [profiles.load(name) for name in _NAMES]
    files = {folder: sorted((SHARED_DATA / folder).glob("*.*")) for folder in ("topo_m", "nccl_xml")}
    real = {folder: [path.read_text("utf-8") for path in paths] for folder, paths in files.items()}
    written = [nccl.write(machine) for machine in machines]
    yaml = [(PROFILES / f"{name}.yaml").read_text("utf-8") for name in _NAMES]
    yaml += [(PROFILES / "ascend" / f"{name}.yaml").read_text("utf-8") for name in profiles.names("ascend")]
    others = {name: profiles.load(name) for name in ("mi210-x8", "ascend-910a-x8", "ascend-a3-x16")}
    amd = [path.read_text("utf-8") for path in sorted((SHARED_DATA / "vendors" / "amd").glob("*_*topo*.txt"))]
    npu = [path.read_text("utf-8") for path in sorted((SHARED_DATA / "vendors" / "ascend").glob("*.txt"))]
    npu = ["".join(npu), *(_npu_smi(machine) for name, machine in others.items() if "ascend" in name)]
    rccl = [path.read_text("utf-8") for path in sorted((SHARED_DATA / "vendors" / "amd" / "rccl_models").glob("*.xml"))]
    texts = [topo_m.write(machine) for machine in machines] + real["topo_m"]
    examples = [path.read_text("utf-8") for path in sorted((REPO / "examples").glob("*.yaml"))]
    small = [min(yaml, key=len), min(map(machine_codec.encode, machines), key=len), min(written, key=len)]
    return [
        Parser(
            "machine JSON", _read(machine_codec.decode), [*map(machine_codec.encode, (*machines, *others.values()))]
        ),
        Parser("amd-smi and rocm-smi", _read(smi.read), [*amd, _amd_smi(others["mi210-x8"])]),
        Parser("npu-smi info -t topo", _read(npu_smi_matrix.read), npu),
        Parser("npu-smi info", _read(npu_smi_table.read), npu),
        Parser("RCCL XML", _read(nccl.read), rccl or written),
        Parser("nvidia-smi topo -m", _read(topo_m.read), texts),
        Parser("pasted texts", _read(topo_m.read), short(texts), pasted),
        Parser("files of machines", _read(_of_file(read_machine)), [*short(texts), *small], pasted),
        Parser("kubeconfigs", _of_file(_read_kubeconfig), _KUBECONFIGS),
        Parser("NCCL XML, read", _read(nccl.read), written + real["nccl_xml"]),
        Parser("NCCL XML, checked", nccl.check, written + real["nccl_xml"]),
        Parser("profile YAML", _read(lambda text: profile_reader.read(text, source="x.yaml")), yaml),
        Parser("manifests", _lint, examples),
        Parser("files of manifests", _read_documents, examples),
        Parser("policies", lambda text: policies.read(text.encode("utf-8", "surrogatepass"), source="x"), [_POLICIES]),
        Parser(
            "policies file",
            _read_policies,
            [(REPO / "docs/reference/policies.md").read_text("utf-8").split("```")[1][5:]],
        ),
    ]


def _amd_smi(machine: Machine) -> str:
    """Return a machine as ``amd-smi topology --json`` prints it."""

    def link(i: int, j: int) -> dict[str, object]:
        kind = "SELF" if i == j else "XGMI" if machine.links[i][j] else "PCIE"
        return {"gpu": j, "bdf": machine.gpus[j].pci, "weight": 15, "link_type": kind, "bandwidth": "50000-50000"}

    count = range(len(machine.gpus))
    rows = [{"gpu": i, "bdf": machine.gpus[i].pci, "links": [link(i, j) for j in count]} for i in count]
    return msgspec.json.encode(rows).decode()


def _npu_smi(machine: Machine) -> str:
    """Return a machine as ``npu-smi info -t topo`` prints it."""
    kinds = {0: "SYS", 1: "HCCS", 2: "SIO"}
    head = [f"NPU{gpu.index}" for gpu in machine.gpus]
    rows = [
        [name, *("X" if i == j else kinds[count] for j, count in enumerate(row)), "0-23"]
        for i, (name, row) in enumerate(zip(head, machine.links, strict=True))
    ]
    return "\n".join("\t".join(row) for row in [["", *head, "CPU Affinity"], *rows])


def _read(read: Callable[[str], Machine]) -> Callable[[str], object]:
    """Return ``read`` followed by the way back: what is accepted must be a machine that can be passed on."""

    def run(text: str) -> object:
        machine = read(text)
        assert machine_codec.decode(machine_codec.encode(machine)) == machine
        return machine

    return run


def _of_file(read: Callable[[Path], T]) -> Callable[[str], T]:
    """Return what reads a text from a file."""
    memory = Path("/dev/shm")
    file = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None)) / "text"

    def run(text: str) -> T:
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        return read(file)

    return run


def _read_kubeconfig(file: Path) -> object:
    return config.from_kubeconfig(file, plugin=lambda spec, cluster, folder: config.Credentials(token="T"))


def _read_documents(text: str) -> object:
    return list(_documents(text))


def _documents(text: str) -> Iterator[Document]:
    """Yield the objects of a manifest.

    Raises:
        DocumentError: One cannot be read.
    """
    for document in documents(text.encode("utf-8", "surrogatepass"), "x"):
        if isinstance(document, DocumentError):
            raise document
        yield document


def _read_policies(text: str) -> object:
    """Read a file: what is accepted can be written down, and read again as the same."""
    found = policies.read(text.encode("utf-8", "surrogatepass"), source="x.yaml")
    again = policies.read(safe_dump(plain(found)).encode(), source="y.yaml")
    assert plain(again) == plain(found)
    return found


def _lint(text: str) -> object:
    """Read manifests and let the webhook answer to them."""
    every = [found for one in _documents(text) for found in results(one, _WEBHOOK)]
    return msgspec.json.encode(every)


def damaged(corpus: Sequence[str], rng: random.Random) -> str:
    """Return a text of the corpus with one to six damages."""
    text = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        start = rng.randint(0, len(text))
        stop = min(len(text), start + rng.choice((0, 1, 2, 5, 20, 200)))
        kind = rng.randrange(6)
        if kind == 0:
            middle = ""
        elif kind == 1:
            middle = text[start:stop] * 2
        elif kind == 2:
            other = rng.choice(corpus)
            cut = rng.randint(0, len(other))
            middle = other[cut : cut + rng.choice((3, 30, 300))]
        else:
            middle = "".join(rng.choice(_PIECES) for _ in range(rng.choice((1, 1, 2, 4))))
        text = text[:start] + middle + text[stop:]
    return text[: rng.randint(0, len(text))] if rng.random() < 0.05 else text


def short(texts: Sequence[str]) -> list[str]:
    """Return the texts that are short."""
    return [text for text in texts if len(text) < _SHORT]


def pasted(corpus: Sequence[str], rng: random.Random) -> str:
    """Return a damaged text as somebody pastes it: wrapped, with something before each line, with blanks for tabs."""
    text = damaged(corpus, rng)
    if rng.random() < 0.5:
        text = text.expandtabs()
    if rng.random() < 0.3:
        width = rng.choice((40, 80, 120))
        text = "\n".join(line[at : at + width] for line in text.split("\n") for at in range(0, len(line) or 1, width))
    for _ in range(rng.choice((0, 1, 2))):
        before = rng.choice(_BEFORE)
        text = "\n".join(before + line for line in text.split("\n"))
    return text.replace("\n", rng.choice(("\n", "\r\n", "\r")))


def fuzz(parser: Parser, *, inputs: int, rng: random.Random) -> str | None:
    """Give ``parser`` damaged texts; return the first that made it fail otherwise than by our error."""
    for _ in range(inputs):
        text = (parser.damage or damaged)(parser.corpus, rng)
        try:
            parser.read(text)
        except (TopologyError, PoliciesError, DocumentError, ConfigError) as error:
            parser.refused += 1
            if not 0 < len(str(error)) < _MOST_SAID:
                return f"{str(error)[:_MOST_SAID]}\n{text}"
        except Exception as error:  # whatever it is, it is the defect that is looked for
            return f"{type(error).__name__}: {error}\n{text}"
        else:
            parser.accepted += 1
    return None


def main(arguments: Sequence[str]) -> int:
    """Run and print one line a parser; return 1 where one failed."""
    options = argparse.ArgumentParser(prog="python -m tests.bench.fuzz")
    options.add_argument("--inputs", type=int, default=INPUTS, help="of each parser (%(default)s)")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args(arguments)
    every = parsers()
    for parser in every:
        start = time.perf_counter()
        failed = fuzz(parser, inputs=given.inputs, rng=random.Random(f"{given.seed} {parser.name}"))
        seconds = time.perf_counter() - start
        print(f"{parser.name:20} {parser.accepted + parser.refused:7,} inputs  {parser.accepted:6,} read  "
              f"{parser.refused:7,} refused  {seconds:6.1f} s")  # fmt: skip
        if failed is not None:
            print(f"FAILED on:\n{failed!r}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
