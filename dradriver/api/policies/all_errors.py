"""Converts a policies file to its sections, and collects all errors of the conversion instead of the first one.

``policies_reader`` calls this module. A *place* is the path of a field in the file, such as ``gpus[1].shared``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dradriver.api.policies.policy_sections import Sections
from dradriver.errors import DriverError
from dradriver.yamltext.read import Problem, Text

_MOST_ERRORS: Final = 50  # that are looked for: each costs a conversion of the file
_NAMES_OF: Final = {"workloads": "policies", "queue": "tenants"}  # the section whose names a section uses


def convert(document: Text) -> tuple[Sections | None, list[Problem], list[str]]:
    """Return the sections of a file, its errors, and the places that were left out because of these errors.

    The conversion ends at the first error. So the place of the error is left out, and the conversion is tried again.
    The sections are None if the file as a whole has another form, or has ``_MOST_ERRORS`` errors.
    """
    problems: list[Problem] = []
    left_out: list[str] = []
    while True:
        try:
            return document.convert(Sections), problems, left_out
        except DriverError as error:
            (problem,) = error.args  # as the text's ``Form`` says
            problems.append(problem)
            place = _leave_out(document.data, problem.place)
            if place is None or len(problems) == _MOST_ERRORS:
                return None, problems, left_out
            left_out.append(place)


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


def _leave_out(data: object, place: str) -> str | None:
    """Empty the rule, policy or tenant at a place, or remove the section; return the place of what was left out.

    None if the file has no section with this place, so that nothing was left out. The file's data is changed in place.
    """
    if not isinstance(data, dict):
        return None
    section: str | None = next((key for key in data if _is_in(place, key)), None)
    if section is None:
        return None
    entries = data[section]
    if section in ("policies", "tenants") and isinstance(entries, dict):
        name = next((name for name in entries if _is_in(place, f"{section}.{name}")), None)
        if name is not None:
            entries[name] = {}
            return f"{section}.{name}"
    if section == "gpus" and isinstance(entries, list):
        number = next((i for i in range(len(entries)) if _is_in(place, f"{section}[{i}]")), None)
        if number is not None:
            entries[number] = {}
            return f"{section}[{number}]"
    del data[section]
    return section
