"""Write the chart's README: every value with what values.yaml says of it.

Usage: python -m docs.values [--print]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "helm" / "gpu-topology-dra"
TARGET: Final = CHART / "README.md"
_KEY: Final = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):( |$)")
_KINDS: Final = {"object": "mapping", "array": "list", "string": "text", "boolean": "true or false"}
_HEAD: Final = """\
# {name}

{description}. Kubernetes {kubernetes}. Written by `make reference` from `values.yaml` and `Chart.yaml`.

    helm install gpu-topology {name}-{version}.tgz --namespace gpu-topology --create-namespace
    helm test gpu-topology --namespace gpu-topology

The nodes need the image: load it into their container runtimes, or set `image.repository` to its name in your registry.
Helm refuses values that are not in these tables, and values of another kind. `helm show values` prints the source of
this page. In the repository, `docs/start/install.md` says what a cluster needs, and `docs/tasks/upgrading.md` how to
upgrade.
"""


class ValuesError(Exception):
    """values.yaml cannot be made a page of; the message says what to write."""


@dataclass(frozen=True)
class Value:
    """One value: its path, what it is, its default, and what the comment above it says."""

    path: tuple[str, ...]
    kind: str
    default: Any
    text: str


def comments(text: str) -> dict[tuple[str, ...], str]:
    """Return the comment directly above each key of a YAML file, by the key's path; examples are left out."""
    found: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    for line in text.splitlines():
        if (stripped := line.strip()).startswith("#"):
            lines.append(stripped.removeprefix("#").removeprefix(" "))
            continue
        if key := _KEY.match(line):
            indent = len(key[1])
            path = [one for one in path if one[0] < indent] + [(indent, key[2])]
            said = " ".join(lines).partition(" For example:")[0]
            found[tuple(name for _, name in path)] = re.sub(" +", " ", said).strip()
        lines = []
    return found


def values() -> Iterator[Value]:
    """Yield the chart's values in the order of values.yaml.

    A mapping whose first key has a comment is its keys, any other one value.

    Raises:
        ValuesError: A value has no comment.
    """
    text = (CHART / "values.yaml").read_text("utf-8")
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    said = comments(text)

    def below(found: dict[str, Any], path: tuple[str, ...], about: dict[str, Any]) -> Iterator[Value]:
        for key, default in found.items():
            here = (*path, key)
            known = _resolved(about["properties"][key], schema)
            first = next(iter(default), None) if isinstance(default, dict) else None
            if first is not None and said[*here, first]:
                yield from below(default, here, known)
            elif not said[here]:
                raise ValuesError(f"values.yaml: {'.'.join(here)} has no comment: write above it what it is")
            else:
                yield Value(here, _kind(known), default, said[here])

    return below(yaml.safe_load(text), (), schema)


def page() -> str:
    """Return the whole of the chart's README.

    Raises:
        ValuesError: A value has no comment.
    """
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    said = comments((CHART / "values.yaml").read_text("utf-8"))
    kubernetes = chart["kubeVersion"].removeprefix(">=").removesuffix(".0-0") + " or newer"
    parts = [_HEAD.format(kubernetes=kubernetes, **{key: chart[key] for key in ("name", "version", "description")})]
    everything = [*values()]
    parts.append(_section("Values of the whole", "", [one for one in everything if len(one.path) == 1]))
    parts += [
        _section(f"`{name}`", said[name,], [one for one in everything if one.path[0] == name])
        for name in dict.fromkeys(one.path[0] for one in everything if len(one.path) > 1)
    ]
    return "\n".join(parts)


def _section(title: str, text: str, shown: list[Value]) -> str:
    rows = ["| value | kind | default | what it is |", "|---|---|---|---|"]
    for one in shown:
        default = json.dumps(one.default, ensure_ascii=False)
        cells = (f"`{'.'.join(one.path)}`", one.kind, f"`{default}`", one.text.replace("<", r"\<"))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    table, text = "\n".join(rows), text.replace("<", r"\<")
    return f"## {title}\n\n{text}\n\n{table}\n" if text else f"## {title}\n\n{table}\n"


def _resolved(about: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in about:
        return about
    found: dict[str, Any] = schema["definitions"][about["$ref"].rpartition("/")[2]]
    return found


def _kind(about: dict[str, Any]) -> str:
    """Return in a word or two what a value may be: the words that it may be one of, or its kind."""
    if "enum" in about:
        return ", ".join(f"`{json.dumps(word) if not isinstance(word, str) else word}`" for word in about["enum"])
    kinds: list[str] = about["type"] if isinstance(about["type"], list) else [about["type"]]
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds if kind != "null")


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        TARGET.write_text(page(), encoding="utf-8")
