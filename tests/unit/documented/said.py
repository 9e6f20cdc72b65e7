"""What the code can tell people, read from its source: reasons of pods that wait, reasons of Events."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

OPEN: Final = "…"  # what stands in a text for what differs from pod to pod


def reasons(sources: Iterable[str]) -> set[str]:
    """Return the texts of all reasons that some modules make; ``OPEN`` stands for what differs from pod to pod."""
    found: set[str] = set()
    for source in sources:
        tree = ast.parse(source)
        scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for scope in (*scopes, tree):
            for call in ast.walk(scope):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Reason":
                    found |= _texts(call.args[1], scope)
    return {text for text in found if text.strip(f"{OPEN} ;")}


def _texts(value: ast.expr, within: ast.AST) -> set[str]:
    """Return the texts that an expression of a function can be; ``OPEN`` for what is not known."""
    match value:
        case ast.Constant():
            return {str(value.value)}
        case ast.IfExp():
            return _texts(value.body, within) | _texts(value.orelse, within)
        case ast.JoinedStr():
            parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in value.values]
            return {"".join(each) for each in itertools.product(*(_texts(part, within) for part in parts))}
        case ast.Name():
            given = [node.value for node in ast.walk(within) if isinstance(node, ast.Assign) and _is_of(node, value)]
            return {text for each in given for text in _texts(each, within)} or {OPEN}
    return {OPEN}


def _is_of(given: ast.Assign, name: ast.Name) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name.id for target in given.targets)


def recorded(sources: Mapping[Path, str]) -> set[str]:
    """Return the reasons of all Events that the code writes: of calls of ``record``, or of a ``_say`` about a node."""
    found: set[str] = set()
    for path, source in sources.items():
        if path.name == "event_recorder.py" and path.parent.name == "kube":
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == "_say" and [ast.unparse(some) for some in node.args[:1]] == ["node"]:
                found |= _constants(node.args[1], source, sources.values())
            if node.func.attr == "record":
                for keyword in node.keywords:
                    if keyword.arg == "reason":
                        found |= _constants(keyword.value, source, sources.values())
    return found


def _constants(value: ast.expr, source: str, sources: Collection[str]) -> set[str]:
    """Return the texts that an expression can be; of a name or table those that it is given in the same module."""
    if isinstance(value, ast.Constant):
        return {str(value.value)}
    if isinstance(value, ast.IfExp):
        return _constants(value.body, source, sources) | _constants(value.orelse, source, sources)
    if isinstance(value, ast.Name):
        if default := re.search(rf'\b{value.id}: str = "(\w+)"', source):  # a parameter of what is called ``recorder``
            given = re.compile(rf'\brecorder\([^()]*\b{value.id}="(\w+)"')
            return {default[1], *(text for each in sources for text in given.findall(each))}
        assigned = re.findall(rf"(?m)^\s+{value.id} = (\w+)\.reason$", source)
        return {text for name in assigned for text in _class_reasons(name, sources)}
    if isinstance(value, ast.Subscript) and (
        table := re.search(rf"(?ms)^{ast.unparse(value.value)}: Final = {{(.*?)^}}", source)
    ):
        return set(re.findall(r': "(\w+)"', table[1]))
    raise AssertionError(f"write here how {ast.unparse(value)} is read")


def _class_reasons(name: str, sources: Collection[str]) -> set[str]:
    """Return the reason of an error class."""
    form = re.compile(rf'(?ms)^class {name}\(.*?^    reason = "(\w+)"')
    return {text for source in sources for text in form.findall(source)}
