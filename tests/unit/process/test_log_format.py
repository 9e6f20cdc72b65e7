from __future__ import annotations

import json
import logging

from dradriver.process.log_format import JsonFormatter, TextFormatter


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("a.b", logging.INFO, "x.py", 1, message, args, None)


def test_json_lines_are_one_object_each() -> None:
    line = JsonFormatter().format(record("two\nlines %s", 'and a "quote"'))
    assert "\n" not in line
    assert json.loads(line)["message"] == 'two\nlines and a "quote"'


def test_text_from_a_pod_cannot_forge_a_line() -> None:
    line = TextFormatter().format(record("name %s", "x\n2026 ERROR forged"))
    assert "\n" not in line
    assert "\\n2026 ERROR forged" in line
