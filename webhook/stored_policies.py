"""CREATE and UPDATE of the ConfigMap with the policies file: refuses an invalid file before it is stored.

So ``helm upgrade``, ``kubectl apply`` and ``kubectl edit`` print the errors. Otherwise only Events, metrics and
``gputopo verify`` would say that the last valid file stays in force.

During an upgrade or a rollback, the webhook of the old release gets the file of the other release, which can have
fields that it does not know. So it refuses only a file whose ConfigMap has the version label of the webhook's own
release. Any other file gets warnings.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from dradriver import __version__
from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.counted import counted


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    labels: dict[str, str] | None = None


class _ConfigMap(msgspec.Struct, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    data: dict[str, str] | None = None


_CONFIG_MAP: Final = msgspec.json.Decoder(_ConfigMap | None)


class InvalidPoliciesError(WordError):
    """The policies file of a ConfigMap is invalid and must not be stored.

    Attributes:
        errors: All errors of the file, one line each.
    """

    def __init__(self, message: str, errors: list[str]) -> None:
        """Make the error from its message and the errors of the file."""
        super().__init__(message)
        self.errors = errors


def check(new: Raw, old: Raw) -> list[str]:
    """Validate the policies file in a ConfigMap before it is stored, and return warnings.

    Args:
        new: The ConfigMap.
        old: The ConfigMap before an update, else ``null``. If its file is the same, the update is never refused. So
            labels and finalizers can change, even if an invalid file was stored while no webhook answered.

    Raises:
        InvalidPoliciesError: The file is invalid, and the ConfigMap is of the webhook's own release.
        WordError: The object is no ConfigMap.
    """
    sent = _decode(new)
    errors = _errors(_file(sent))
    if not errors:
        return []
    labels = (sent and sent.metadata.labels) or {}
    if labels.get(names.VERSION_LABEL) == __version__ and not _is_stored(sent, old):
        raise InvalidPoliciesError(
            f"The policies file has {counted(len(errors), 'error')}, so it is not stored. Correct it and repeat the "
            "command. gputopo policies check FILE finds these errors before an upgrade, if FILE has all policies.",
            errors,
        )
    return ["The running version of the driver cannot use this policies file, and keeps its last valid one:", *errors]


def _errors(text: str | None) -> list[str]:
    """Return all errors of a policies file; None for a ConfigMap without the file."""
    from dradriver.api.policies.policies_reader import PoliciesError, read  # here, because it loads yaml

    if text is None:
        return [f"The ConfigMap has no key {names.POLICIES_KEY}."]
    try:
        read(text.encode(), source=names.POLICIES_KEY)
    except PoliciesError as error:
        return error.all_by_key()
    return []


def _is_stored(sent: _ConfigMap | None, old: Raw) -> bool:
    """Return whether the ConfigMap before the update has the same file as the sent one."""
    try:
        before = _decode(old)
    except WordError:
        return False
    return before is not None and _file(before) == _file(sent)


def _file(config_map: _ConfigMap | None) -> str | None:
    return ((config_map and config_map.data) or {}).get(names.POLICIES_KEY)


def _decode(text: Raw) -> _ConfigMap | None:
    """Return the ConfigMap; None if there is no object (JSON ``null``)."""
    try:
        found: _ConfigMap | None = _CONFIG_MAP.decode(text)
    except (ValueError, RecursionError) as error:
        raise WordError(f"The object is not a valid ConfigMap: {error}.") from None
    return found
