"""Opaque parameters are tenants' input: whatever stands there, they are read or refused."""

from __future__ import annotations

import pytest

from dradriver.api.base.errors import WordError
from dradriver.api.claims import opaque_config


@pytest.mark.parametrize("parameters", [{"\ud800": 1}, {"order": "\ud800"}, {"apiVersion": "\ud800", "kind": "x"}])
def test_half_a_letter_is_refused(parameters: object) -> None:
    with pytest.raises(WordError, match="opaque parameters"):
        opaque_config.read(parameters)
