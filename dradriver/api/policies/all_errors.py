"""Converts a policies file to its sections, and collects all errors of the conversion instead of the first one.

``policies_reader`` calls this module. A *place* is the path of a field in the file, such as ``gpus[1].shared``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dradriver.api.policies.policy_sections import Sections
from dradriver.yamltext.read import Problem, Text

_NAMES_OF: Final = {"workloads": "policies", "queue": "tenants"}  # the section whose names a section uses


def convert(document: Text) -> tuple[Sections | None, list[Problem], list[str]]:
    """Return the sections of a file, all its wrong keys and values, and the places that were left out because of these.

    The sections are None if the file as a whole has another form, or if it has keys of no valid form, or keys that
    occur twice.
    """
    problems = wrong_values = document.value_problems(Sections)
    left_out: list[str] = []
    while wrong_values:
        left_out_now: list[str] = []
        for problem in wrong_values:
            if any(_is_in(problem.place, each) for each in left_out_now):
                continue
            place = _leave_out(document.data, problem.place, left_out)
            if place is None:
                return None, document.key_problems + problems, left_out
            left_out_now.append(place)
        left_out += left_out_now
        wrong_values = document.value_problems(Sections)
    if document.key_problems:
        return None, document.key_problems + problems, left_out
    return document.convert(Sections), problems, left_out


def counts(place: str, left_out: Sequence[str]) -> bool:
    """Return whether an error at a place is reported, although the places ``left_out`` were left out.

    It is not reported if its place was left out. It is not reported either if its section uses names of a section that
    was left out as a whole, because the error may follow from that.
    """
    section = place.partition(".")[0]
    return _NAMES_OF.get(section) not in left_out and not any(_is_in(place, each) for each in left_out)


def _is_in(place: str, outer: str) -> bool:
    """Return whether a place in the file is the place ``outer`` or a part of it."""
    return place == outer or place.startswith((f"{outer}.", f"{outer}["))


def _leave_out(data: object, place: str, left_out: Sequence[str]) -> str | None:
    """Empty the rule, policy or tenant at a place, or remove the section; return the place of what was left out.

    The section is also removed if the rule, policy or tenant is already in ``left_out``: then its name is wrong. The
    result is None if the file has no section with this place. The file's data is changed in place.
    """
    if not isinstance(data, dict):
        return None
    section: str | None = next((key for key in data if _is_in(place, key)), None)
    if section is None:
        return None
    entries = data[section]
    if section in ("policies", "tenants") and isinstance(entries, dict):
        name = next((name for name in entries if _is_in(place, f"{section}.{name}")), None)
        if name is not None and f"{section}.{name}" not in left_out:
            entries[name] = {}
            return f"{section}.{name}"
    if section == "gpus" and isinstance(entries, list):
        number = next((i for i in range(len(entries)) if _is_in(place, f"{section}[{i}]")), None)
        if number is not None:
            entries[number] = {}
            return f"{section}[{number}]"
    del data[section]
    return section
