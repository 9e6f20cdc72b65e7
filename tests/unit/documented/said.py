"""What the code can tell people, read from its source: reasons of pods that wait, reasons of Events."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

OPEN: Final = "…"  # what stands in a text for what differs from pod to pod
_TOLD: Final = {"Wait": 1, "Withdraw": 2, "GiveBack": 2}  # steps, and which argument is what the pod's author is told


def reasons(module: ModuleType) -> set[str]:
    """Return what the steps that a module's functions make tell a pod's author."""
    tree = _Constants(module).visit(ast.parse(inspect.getsource(module)))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found: set[str] = set()
    for function in functions:
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _TOLD:
                at = _TOLD[call.func.id]
                told = [each.value for each in call.keywords if each.arg == "reason"] or call.args[at : at + 1]
                found |= {text for value in told for text in _texts(value, function, functions)}
    return found


class _Constants(ast.NodeTransformer):
    """Puts the texts of a module's constants in the place of their names."""

    def __init__(self, module: ModuleType) -> None:
        self._known = {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        known = self._known.get(node.id) if isinstance(node.ctx, ast.Load) else None
        return node if known is None else ast.Constant(known)


def _texts(value: ast.expr, within: ast.FunctionDef, functions: Collection[ast.FunctionDef]) -> set[str]:
    """Return the texts that an expression of a function can be: none for None, ``OPEN`` for what is not known."""
    match value:
        case ast.Constant():
            return set() if value.value is None else {str(value.value)}
        case ast.IfExp():
            return _texts(value.body, within, functions) | _texts(value.orelse, within, functions)
        case ast.BoolOp(op=ast.Or()):
            others = [each for each in value.values if not _is_assigned(each, value, within)]
            return {text for each in others for text in _texts(each, within, functions)}
        case ast.JoinedStr():
            parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in value.values]
            return {"".join(each) for each in itertools.product(*(_texts(part, within, functions) for part in parts))}
        case ast.Name():
            given = [node for node in ast.walk(within) if isinstance(node, ast.Assign) and _is_of(node, value)]
            given = [node for node in given if not isinstance(node.value, ast.Constant) or node.value.value != ""]
            return {text for each in given for text in _texts(each.value, within, functions)} or {OPEN}
        case ast.Call(func=ast.Name(id=name)):
            found: set[str] = set()
            for maker in (each for each in functions if each.name == name):
                ends = [node.value for node in ast.walk(maker) if isinstance(node, ast.Return)]
                found |= {text for end in ends if end is not None for text in _texts(end, maker, functions)}
            return found or {OPEN}
    return {OPEN}


def _is_assigned(name: ast.expr, value: ast.expr, within: ast.FunctionDef) -> bool:
    """Return whether a name of a value is what the value is given to: the first of several texts stays."""
    given = [node for node in ast.walk(within) if isinstance(node, ast.Assign) and node.value is value]
    return isinstance(name, ast.Name) and any(_is_of(node, name) for node in given)


def _is_of(given: ast.Assign, name: ast.Name) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name.id for target in given.targets)


def recorded(sources: Mapping[Path, str]) -> set[str]:
    """Return the reasons of all Events that the code writes: of calls of ``record``, or of a ``_say`` about a node."""
    found: set[str] = set()
    for path, source in sources.items():
        if path.name == "events.py" and path.parent.name == "kube":
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
