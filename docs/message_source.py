"""Collect the texts that the code says to people, from its source: log lines, refusals, warnings of the webhook.

docs/messages.py makes the page of messages of them. An upper-case word stands for what differs from one message to the
next, as in ``claim NAMESPACE/NAME``, and ``…`` where the code has no name for it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
OPEN: Final = "…"
LEVELS: Final = {"warning": "warning", "error": "error", "exception": "error", "critical": "critical"}
_MOST: Final = 16  # texts of one expression; what has more is an open place
_SPEC: Final = re.compile(r"%[-+ 0#]*\d*(?:\.\d+)?[a-zA-Z%]")
_OF_ARGUMENT: Final = {"str", "repr", "shown", "sorted", "list", "set", "join", "shorten", "fromkeys", "map"}
_OF_OBJECT: Final = {"strip", "get", "lower", "upper", "removeprefix", "removesuffix"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class LogLine(NamedTuple):
    """A log line of level warning or above: the folder of its module, its level and its text."""

    path: Path
    level: str
    text: str


def log_lines() -> list[LogLine]:
    """Return all log lines of level warning and above of the processes (not of the command line)."""
    lines = []
    for path in _modules("dradriver", "webhook"):
        if "cli" in path.relative_to(ROOT).parts:
            continue
        if not re.search(rf"logger\.(log|{'|'.join(LEVELS)})\(", path.read_text(encoding="utf-8")):
            continue
        module = _module(path)
        for call, within in module.calls:
            if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func.value) != "logger":
                continue
            level = "warning" if call.func.attr == "log" else LEVELS.get(call.func.attr, "")
            if level:
                arguments = call.args[1:] if call.func.attr == "log" else call.args  # without a computed level
                lines += [LogLine(path.relative_to(ROOT), level, text) for text in module.formatted(arguments, within)]
    return list(dict.fromkeys(lines))


def errors(*folders: str) -> dict[str, list[str]]:
    """Return the texts of the errors that the modules in some folders raise, by module."""
    return _of_modules(folders, _error_texts)


def warnings(*folders: str) -> dict[str, list[str]]:
    """Return the texts that functions of some folders return as warnings of the webhook, by module."""
    return _of_modules(folders, _warning_texts)


def policy_messages() -> dict[str, list[str]]:
    """Return what the chart's admission policies say, by the file of the policy."""
    texts_of_template: dict[str, list[str]] = {}
    for path in sorted((ROOT / "helm" / "gpu-topology-dra" / "templates").rglob("*")):
        if path.suffix in (".yaml", ".tpl"):
            texts = list(_policy_texts(path.read_text(encoding="utf-8")))
            if texts:
                texts_of_template[str(path.relative_to(ROOT / "helm" / "gpu-topology-dra" / "templates"))] = texts
    return texts_of_template


def _policy_texts(template: str) -> Iterator[str]:
    """Yield the messages of the validations in one template, with the chart's default name of the driver."""
    lines = template.splitlines()
    for i, line in enumerate(lines):
        match = re.match(r"( *)(?:- )?message(Expression)?: *(.*)$", line)
        if match is None:
            continue
        indent, is_expression, text = len(match[1]), bool(match[2]), match[3]
        if text in (">-", "|", ">"):
            text = " ".join(_below(lines[i + 1 :], indent))
        text = re.sub(r'\{\{-? *include "driver" [.$] *-?\}\}|\{\{-? *\$driver *-?\}\}', "gpu.topology", text)
        text = re.sub(r"\{\{-? *\$prefix *-?\}\}", "gpu.topology/", text)
        text = re.sub(r"\{\{-? *(if|else|end)\b[^}]*\}\}", "", text)
        text = re.sub(r"\{\{[^}]*\}\}", OPEN, text)
        if is_expression:
            text = text.strip("'") if text.startswith("'") else text
            parts = re.findall(r'"((?:[^"\\]|\\.)*)"|([\w.?()]+(?:\("[^"]*"\))?)', text)
            text = "".join(literal if literal or not name else _upper(name.split(".")[-1]) for literal, name in parts)
        else:
            text = text.strip('"')
        yield text


def _below(lines: list[str], indent: int) -> Iterator[str]:
    """Yield the first lines that are indented by more, without their indents."""
    for line in lines:
        if len(line) - len(line.lstrip()) <= indent:
            return
        yield line.strip()


@functools.cache
def _module(path: Path) -> _Module:
    return _Module(path)


class _Module:
    """The syntax tree of a module, with its global names."""

    def __init__(self, path: Path) -> None:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        self.source = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)
        self._name = name

    @functools.cached_property
    def _globals(self) -> Mapping[str, Any]:
        return vars(importlib.import_module(self._name))

    @functools.cached_property
    def calls(self) -> list[tuple[ast.Call, ast.AST]]:
        """Each call with the innermost function that it is in, or with the module."""
        return [(node, within) for node, within in self.nodes if isinstance(node, ast.Call)]

    @functools.cached_property
    def nodes(self) -> list[tuple[ast.AST, ast.AST]]:
        """Each node with the innermost function that it is in, or with the module, in the order of the text."""
        nodes = []
        stack: list[tuple[ast.AST, ast.AST]] = [(self.tree, self.tree)]
        while stack:
            node, within = stack.pop()
            nodes.append((node, within))
            inside = node if isinstance(node, _Function) else within
            stack += [(child, inside) for child in reversed(list(ast.iter_child_nodes(node)))]
        return nodes

    def formatted(self, arguments: list[ast.expr], within: ast.AST) -> list[str]:
        """Return the texts that a call of the logger writes: a format and its values, which are names here."""
        texts: list[str] = []
        for form in self.texts(arguments[0], within):
            specs = [spec for spec in _SPEC.findall(form) if spec != "%%"]
            values = list(_unpacked(arguments[1:], len(specs)))
            choices = [self.texts(value, within) for value in values[: len(specs)]]
            choices += [[OPEN]] * (len(specs) - len(choices))
            texts += ["".join(_filled(form, iter(chosen))) for chosen in _product(choices)]
        return texts

    def texts(self, value: ast.expr, within: ast.AST, depth: int = 0) -> list[str]:
        """Return the texts that an expression can be."""
        if depth > 6:
            return [OPEN]
        match value:
            case ast.Constant():
                return [str(value.value)]
            case ast.IfExp():
                return _few(self.texts(value.body, within, depth) + self.texts(value.orelse, within, depth), value)
            case ast.BoolOp():
                return _few([text for each in value.values for text in self.texts(each, within, depth)], value)
            case ast.BinOp(op=ast.Add()):
                return _joined([self.texts(value.left, within, depth), self.texts(value.right, within, depth)])
            case ast.JoinedStr():
                parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in value.values]
                return _joined([self.texts(part, within, depth) for part in parts])
            case ast.Name():
                return self._of_name(value, within, depth)
            case ast.Attribute():
                known = self._known(value)
                return [known] if known is not None else [_placeholder(value)]
        return [_placeholder(value)]

    def _of_name(self, name: ast.Name, within: ast.AST, depth: int) -> list[str]:
        if not isinstance(within, _Function):
            known = self._known(name)
            return [known] if known is not None else [_placeholder(name)]
        assigned = [
            node.value
            for node in ast.walk(within)
            if (isinstance(node, ast.Assign) and any(_is(target, name.id) for target in node.targets))
            or (
                isinstance(node, ast.NamedExpr | ast.AnnAssign) and node.value is not None and _is(node.target, name.id)
            )
        ]
        values = [each for each in assigned if each is not None]
        if values and all(map(_is_text, values)):
            return _few([text for each in values for text in self.texts(each, within, depth + 1)], name)
        parameters = [each.arg for each in (*within.args.posonlyargs, *within.args.args, *within.args.kwonlyargs)]
        if name.id in parameters and not values:
            passed = self._passed(within, name.id, parameters)
            texts = [text for each, scope in passed for text in self.texts(each, scope, depth + 1)]
            return _few(texts, name) if any(text.count(" ") > 1 for text in texts) else [_placeholder(name)]
        known = None if values or name.id in parameters else self._known(name)
        return [known] if known is not None else [_placeholder(name)]

    def _passed(self, function: _Function, name: str, parameters: list[str]) -> list[tuple[ast.expr, ast.AST]]:
        """Return what the calls in this module pass as one parameter of a function of it."""
        passed = []
        for call, scope in self.calls:
            called = call.func
            if isinstance(called, ast.Attribute) and called.attr == function.name:
                position = parameters.index(name) - (parameters[0] == "self")
            elif _is(called, function.name):
                position = parameters.index(name)
            else:
                continue
            if scope is function:
                continue
            by_name = [keyword.value for keyword in call.keywords if keyword.arg == name]
            by_position = call.args[position : position + 1]
            passed += [(each, scope) for each in (by_name or by_position)]
        return passed

    def _known(self, value: ast.expr) -> str | None:
        """Return what a global name or its attribute is, if it is a text or a number."""
        path = ast.unparse(value).split(".")
        known: Any = self._globals.get(path[0])
        for name in path[1:]:
            known = getattr(known, name, None)
        if isinstance(known, str):
            return str(getattr(known, "value", known))
        if isinstance(known, bool) or not isinstance(known, int | float):
            return None
        return str(known) if isinstance(known, int) else f"{known:g}"


def _unpacked(arguments: list[ast.expr], count: int) -> Iterator[ast.expr]:
    """Yield the arguments of a log line; ``*key`` stands for the namespace and the name of an object."""
    for argument in arguments:
        if isinstance(argument, ast.Starred) and count - len(arguments) + 1 == 2:
            yield from (ast.Name("namespace_"), ast.Name("name_"))
        else:
            yield argument


def _filled(form: str, values: Iterator[str]) -> Iterator[str]:
    """Yield the pieces of a log line with values in the place of its conversions."""
    end = 0
    for match in _SPEC.finditer(form):
        yield form[end : match.start()]
        yield "%" if match[0] == "%%" else next(values)
        end = match.end()
    yield form[end:]


def _error_texts(module: _Module) -> Iterator[str]:
    for call, within in module.calls:
        called = ast.unparse(call.func).split(".")[-1]
        if called == "_PlacedError":
            yield from _joined([module.texts(call.args[0], within), [": "], module.texts(call.args[1], within)])
        elif called.endswith("Error") and called[0] != "_" and call.args:
            yield from module.texts(call.args[-1] if called == "TopologyError" else call.args[0], within)
        elif called in ("refusal", "_refusal", "Problem"):
            yield from module.texts(call.args[-1], within)
    yield from _constants(module)


def _constants(module: _Module) -> Iterator[str]:
    """Yield the texts of global constants with a next step: parts of refusals that other modules make."""
    for node in module.tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            yield from (text for text in module.texts(node.value, module.tree) if re.search("[;:] write ", text))


def _warning_texts(module: _Module) -> Iterator[str]:
    for node, within in module.nodes:
        if not isinstance(within, _Function) or within.returns is None:
            continue
        returned = ast.unparse(within.returns)
        if isinstance(node, ast.Return) and node.value is not None:
            if isinstance(node.value, ast.List):
                for each in node.value.elts:
                    yield from module.texts(each, within)
            elif returned == "str" and ({"Annotations", "_About"} & _annotations(within)):
                yield from module.texts(node.value, within)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("warnings.append", "warnings_found.append")):
            yield from module.texts(node.args[0], within)


def _annotations(function: _Function) -> set[str]:
    return {ast.unparse(each.annotation) for each in function.args.args if each.annotation is not None}


def _of_modules(folders: tuple[str, ...], read: Callable[[_Module], Iterator[str]]) -> dict[str, list[str]]:
    """Return the texts of each module that says one: texts of a few words, without repetitions."""
    texts_of_module = {}
    for path in _modules(*folders):
        texts = [text for text in read(_module(path)) if len(text.split()) > 2 and re.search("[a-z]{2}", text)]
        texts = [text for text in texts if not any(text in other and text != other for other in texts)]
        if texts:
            texts_of_module[str(path.relative_to(ROOT))] = list(dict.fromkeys(texts))
    return texts_of_module


def _modules(*folders: str) -> list[Path]:
    paths = [
        path
        for folder in folders
        for path in ([ROOT / folder] if folder.endswith(".py") else (ROOT / folder).rglob("*.py"))
    ]
    return sorted(path for path in paths if "protos" not in path.relative_to(ROOT).parts and path.name != "__main__.py")


def _placeholder(value: ast.expr) -> str:
    """Return an upper-case word for what an expression stands for."""
    match value:
        case ast.Name():
            return _upper(value.id)
        case ast.Attribute():
            return _upper(value.attr)
        case ast.Subscript():
            return _placeholder(value.value) if not isinstance(value.slice, ast.Constant) else _of_key(value)
        case ast.Starred():
            return OPEN
        case ast.Call(func=ast.Name(id="len")):
            return "N"
        case ast.Call():
            name = ast.unparse(value.func).split(".")[-1]
            if name in _OF_ARGUMENT and value.args:
                return _placeholder(value.args[-1])
            if name in _OF_OBJECT and isinstance(value.func, ast.Attribute):
                return _placeholder(value.func.value)
            return OPEN if name.strip("_") in ("hint", "known_fields") else _placeholder(value.func)
    return OPEN


def _of_key(value: ast.Subscript) -> str:
    key = value.slice.value if isinstance(value.slice, ast.Constant) else ""
    return _upper(key) if isinstance(key, str) else _placeholder(value.value)


def _upper(name: str) -> str:
    return re.sub(r"[^A-Z0-9_]", "", name.strip("_").upper()) or OPEN


def _few(texts: list[str], value: ast.expr) -> list[str]:
    texts = list(dict.fromkeys(texts))
    return texts if len(texts) <= _MOST else [_placeholder(value)]


def _product(choices: list[list[str]]) -> Iterator[tuple[str, ...]]:
    """Return all combinations, of long lists only the first element, so that there are few."""
    while math.prod(map(len, choices)) > _MOST:
        longest = max(choices, key=len)
        choices = [[OPEN] if each is longest else each for each in choices]
    return itertools.product(*choices)


def _joined(choices: list[list[str]]) -> list[str]:
    return ["".join(each) for each in _product(choices)]


def _is_text(value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return _is_text(value.body) and _is_text(value.orelse)
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
