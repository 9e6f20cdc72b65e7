"""Two thousand random faults in NCCL topology files: the checker says of each what the written rules say, and where.

Every kind of fault below has its verdict, as NCCL's sources and runs of its parser have it: an error, or nothing that
changes what NCCL reads. An error is told in the line of the fault.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from dradriver.topology import nccl, profiles

COUNT = 2000
_TREES = ("dgx1-v100", "hgx-h100", "l40s-x8", "a100-pcie-x8-bridge-pairs", "dgx-a100")
_GPU = re.compile(r'( *<pci busid="([^"]*)" class="0x030200"[^>]*?)/>')


@cache
def files() -> tuple[str, ...]:
    """Files as the driver writes them, and dumps of the same machines, with GPUs' links."""
    plain = [nccl.write(profiles.load(name)) for name in _TREES]
    return (*plain, *(dump(text, switched=name in ("hgx-h100", "dgx-a100")) for text, name in
                      zip(plain, _TREES, strict=True)))  # fmt: skip


def dump(text: str, *, switched: bool) -> str:
    busids = [match[2] for match in _GPU.finditer(text)]
    peer = {busid: busids[at ^ 1] for at, busid in enumerate(busids)}

    def linked(match: re.Match[str]) -> str:
        target, kind = ("0000:ff:00.0", "0x068000") if switched else (peer[match[2]], "0x030200")
        return f'{match[1]}><gpu><nvlink target="{target}" count="4" tclass="{kind}"/></gpu></pci>'

    return _GPU.sub(linked, text)


Fault = Callable[[str, random.Random], str | None]  # None where the file has no place for it


def at(pattern: str, change: Callable[[re.Match[str], random.Random], str]) -> Fault:
    """A fault at any one place that matches."""
    compiled = re.compile(pattern)

    def fault(text: str, rng: random.Random) -> str | None:
        places = list(compiled.finditer(text))
        if not places:
            return None
        place = rng.choice(places)
        return text[: place.start()] + change(place, rng) + text[place.end() :]

    return fault


def say(*words: str) -> Callable[[re.Match[str], random.Random], str]:
    """One of some replacements, in which \\1, … stand for groups."""
    return lambda match, rng: match.expand(rng.choice(words))


def extra(count: int) -> str:
    return "".join(f' a{number}="1"' for number in range(count))


def many(match: re.Match[str], rng: random.Random) -> str:
    return match[1] + extra(rng.randint(10, 16))


TAG = r"(<(?:cpu|pci|gpu|nvlink) )"
EMPTY = r'(<cpu numaid="\d+"[^>]*)/>'
ERRORS: dict[str, Fault] = {
    "tab": at(r"\n  ", say(r"\n\t", r"\n \t")),
    "break in a tag": at(TAG, say(r"\1\n")),
    "no quotes": at(r'(class=)"(0x\w+)"', say(r"\1\2")),
    "single quotes": at(r'(class=)"(0x\w+)"', say(r"\1'\2'")),
    "no closing tag": at(r"</(?:cpu|system)>", say("")),
    "another closing tag": at(r"</cpu>", say("</pci>", "</CPU>", "</cpu >")),
    "text": at(r"\n( *)<pci", say(r"\n\1bus<pci", r"\n\1.<pci")),
    "declaration": at(r"\A", say('<?xml version="1.0"?>\n', "<!DOCTYPE system>\n", "\ufeff")),
    "version": at(r'version="1"', say('version="2"', 'version=""', "")),
    "long element": at(r"</cpu>", lambda match, rng: f"<{'x' * rng.randint(254, 400)}/>{match[0]}"),
    "long value": at(r'(class=")0x\w+', lambda match, rng: match[1] + "0" * rng.randint(254, 400)),
    "attributes": at(r'(<pci busid="0[^"]*")', many),
    "numaid": at(r'(<cpu )numaid="\d+"([^>]*[^/]>)', say(r"\1\2", r'\1numaid="node0"\2', r'\1numaid=""\2')),
    "numaid twice": at(r'<cpu numaid="1"([^>]*[^/]>)', say(r'<cpu numaid="0"\1')),
    "affinity": at(r'(<cpu [^>]*affinity=")[^"]*("[^>]*[^/]>)', say(r"\g<1>0-15\2", r"\g<1>all\2")),
    "arch": at(r'arch="\w+"', say('arch="amd64"', 'arch="x86-64"', 'arch="aarch64"')),
    "vendor": at(r'vendor="(?:GenuineIntel|AuthenticAMD)"', say('vendor="Intel"', 'vendor="AMD"')),
    "model": at(r'modelid="\d+"', say('modelid="?"', 'modelid=""')),
    "host": at(r'(<cpu numaid="\d+")', say(r'\1 host_hash="0x1f"')),
    "bus id of a GPU": at(
        r'<pci busid="(0000:\w\w:\w\w\.\w)"( class="0x03)',
        say(r'<pci busid="0000\1"\2', r'<pci busid="x\1"\2', r'<pci busid=""\2', r"<pci\2"),
    ),
    "bus id of a switch missing": at(r'<pci busid="[^"]*" class="0x06', say('<pci class="0x06')),
    "class of an invented switch": at(r'(<pci busid="ffff:[^"]*") class="\w+"', say(r"\1")),
    "speed": at(r'(link_speed=)"[\d.]+ GT/s PCIe"', say(r'\1"32.0 GT/s"', r'\1"Gen5"', r'\1"16"')),
    "width": at(r'link_width="\d+"', lambda _, rng: f'link_width="{rng.randint(65, 999)}"'),
    "around": at(r'( *<pci busid="[^"]*" class="0x030200"[^>]*/>)', say(r"<slot>\1</slot>", r"<bus>\1</bus>")),
    "misplaced": at(r"( *)(</cpu>)", say(r'<nvlink target="0000:01:00.0" count="1"/>\2', r"<gpu/>\2")),
    "two GPUs": at(r"</gpu></pci>", say("</gpu><gpu/></pci>")),
    "count": at(r'(<nvlink [^>]*count=")4', say(r"\1many", r"\g<1>-1", r"\1")),
    "count of a bandwidth": at(r'(<nvlink [^>]*count=")4', lambda match, rng: f"{match[1]}{rng.randint(19, 900)}"),
    "one way": at(r'(<nvlink [^>]*count=")4("[^>]*tclass="0x03)', say(r"\g<1>2\2", r"\g<1>3\2")),
    "a switch's link lost": at(r'(<nvlink [^>]*count=")4("[^>]*0x068000)', say(r"\g<1>0\2", r"\g<1>2\2")),
    "no link to the switch": at(r'<gpu><nvlink [^>]*0x068000"/></gpu>', say("<gpu></gpu>")),
    "target of a GPU's link": at(r'(<nvlink target=")[^"]*("[^>]*tclass="0x03)', say(r"\g<1>1\2", r"\1GPU1\2")),
    "attributes of a CPU": at(EMPTY, lambda match, rng: match[1] + extra(rng.randint(12, 16)) + "/>"),
    "attributes of a GPU": at(r"<gpu>", lambda _, rng: f"<gpu{extra(rng.randint(12, 16))}>"),
    "octal": at(r'(count|modelid|link_width)="(\d)', say(r'\1="0\2')),
    "mask in capitals": at(r'(<cpu [^>]*affinity="[^"]*)f([^>]*[^/]>)', say(r"\1F\2")),
    "kept": at(TAG, say(r'\1keep="1" ')),
    "below a GPU": at(r'(<pci busid="[^"]*" class="0x030200"[^>]*)/>', say(r'\1><pci busid="0000:ee:00.0"/></pci>')),
    "a GPU in a switch": at(r'(<pci [^>]*"0x060400"[^>]*[^/]>)', say(r"\1<gpu/>", r"\1<nic/>")),
    "a pcilink in a GPU": at(r"<gpu>", say('<pcilink target="0000:01:00.0"/><gpu>')),
    "a second system with devices": at(
        r"\Z", say('<system version="1"><cpu numaid="0"/></system>\n', '<system version="2"/>\n')
    ),
    "cut": at(r"<pci ", lambda match, rng: match[0][: rng.randint(1, 4)] + "\x00"),
}  # fmt: skip
NOTES: dict[str, Fault] = {
    "a link to a GPU that is not there": at(
        r'<pci busid="[^"]*" class="0x03[^>]*><gpu><nvlink [^>]*0x03\w+"/></gpu></pci>\n', say("")
    ),
    "the same host everywhere": lambda text, _: text.replace("<cpu ", '<cpu host_hash="0x1f" '),
    "speed that /sys does not know": at(r'(link_speed=)"[\d.]+ GT/s PCIe"', say(r'\1"Unknown"', r'\1""')),
    "nothing": at(r"\A", say("")),
    "comment": at(r"\n( *)<", say(r"\n\1<!-- a comment --><")),
    "CRLF": lambda text, _: text.replace("\n", "\r\n"),
    "blanks": at(r" (class|link_width)=", say(r"  \1=")),
    "name of the machine": at(r'(<system version="1")', say(r'\1 name="box"')),
    "unknown": at(r"( *)(</cpu>)", say(r"\1<fan/>\2", r'\1<dimm size="64"></dimm>\2')),
    "twice": at(r'(class="\w+")', say(r'\1 class="0x020000"', r"\1 \1")),
    "short class": at(r'class="0x060400"', say('class="0x0604"')),
    "class in capitals": at(r' class="0x(\w+)"', say(r' class="0X\1"')),
    "second system": at(r"\Z", say('<system version="1"></system>\n', '<system version="1"/>')),
    "numaid of nobody": at(EMPTY, say(r'<cpu numaid="x"/>', "<cpu/>")),
    "affinity of nobody": at(EMPTY, say(r'\1 affinity="0-15"/>')),
    "bus id of a switch": at(
        r'<pci busid="(\w{4}:\w\w:\w\w\.\w)"( class="0x06)', say(r'<pci busid="0000\1"\2', r'<pci busid="switch"\2')
    ),
    "version in other words": at(r'version="1"', say('version="1.0"', 'version="0x1"')),
    "speed in an old kernel's words": at(r'"(\d+)\.0 GT/s PCIe"', say(r'"\1 GT/s"', r'"\1 GT/s PCIe"')),
    "NVML's long form of a target": at(r'(target=")(0000:[^"]*"[^>]*0x03)', say(r"\g<1>0000\2")),
    "not kept": at(TAG, say(r'\1keep="0" ')),
    "GPU twice": at(r'( *<pci busid="[^"]*" class="0x030200"[^>]*/>\n)', say(r"\1\1")),
    "target of a switch's link": at(r'(<nvlink target=")[^"]*("[^>]*0x068000)', say(r"\1switch\2", r"\g<1>0\2")),
    "class of a switch's link": at(r'tclass="0x068000"', say('tclass="0x0680"', 'tclass="0x070000"', 'tclass="NVS"')),
    "no class of a link": at(r' tclass="0x0\w+"', say("")),
}  # fmt: skip


ELSEWHERE = {"no closing tag", "a GPU in a switch"}  # what it breaks is told


def stories() -> Iterator[tuple[str, bool, str, int]]:
    """Name, whether it is an error, text and first line of as many faults as are wanted; always the same ones."""
    rng = random.Random(18)
    kinds = [(name, fault, True) for name, fault in ERRORS.items()] + [(n, fault, False) for n, fault in NOTES.items()]
    made = 0
    while made < COUNT:
        name, fault, error = kinds[made % len(kinds)] if made < 4 * len(kinds) else rng.choice(kinds)
        made += 1
        for whole in rng.sample(files(), len(files())):
            text = fault(whole, rng)
            if text is not None:
                pairs = zip(whole.splitlines(), text.splitlines(), strict=False)
                same = next((n for n, (old, new) in enumerate(pairs, 1) if old != new), whole.count("\n") + 1)
                yield name, error, text, same
                break
        else:
            raise AssertionError(name)


@pytest.mark.slow
def test_two_thousand_faults_have_the_verdict_of_the_written_rules() -> None:
    wrong: dict[str, list[str]] = {}
    for name, error, text, line in stories():
        found = nccl.check(text)
        lines = {finding.line for finding in found if finding.error}
        if bool(lines) != error or (error and name not in ELSEWHERE and line not in lines):
            wrong.setdefault(name, []).append(", ".join(sorted({finding.rule for finding in found})))
    assert wrong == {}


def test_the_files_have_no_faults_of_their_own() -> None:
    for text in files():
        assert not [finding for finding in nccl.check(text) if finding.error]
