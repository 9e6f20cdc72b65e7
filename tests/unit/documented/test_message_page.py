"""docs/reference/messages.md is up to date, and each log line of level warning and above has a cause and a cure."""

from __future__ import annotations

import re

from docs import message_source, messages
from docs.log_lines import LOG_LINES
from tests.paths import REPO
from webhook.review import MOST_WARNING

PAGE = messages.page()


def test_the_page_is_up_to_date() -> None:
    assert messages.TARGET.read_text("utf-8") == PAGE, "run make reference"


def test_each_log_line_has_a_cause_and_a_cure() -> None:
    lines = message_source.log_lines()
    assert len(lines) > 150
    assert [line for line in lines if messages.about(line) is None] == []
    assert {messages.about(line) for line in lines} == {*LOG_LINES}, "docs/log_lines.py has what no log line says"


def test_a_row_has_the_level_of_its_log_line() -> None:
    row = next(line for line in PAGE.splitlines() if "The work did not stop in time" in line)
    assert "| critical |" in row


def test_each_module_that_logs_warnings_has_a_log_line_in_the_page() -> None:
    found = {str(line.path) for line in message_source.log_lines()}
    form = re.compile(r"logger\.(warning|error|exception|critical)\(")
    modules = (path for folder in ("dradriver", "webhook") for path in (REPO / folder).rglob("*.py"))
    expected = {str(path.relative_to(REPO)) for path in modules if form.search(path.read_text("utf-8"))}
    assert {path for path in expected if "/cli/" not in path} == {
        path for path in found if form.search((REPO / path).read_text("utf-8"))
    }


def test_a_refusal_of_each_kind_is_in_the_page() -> None:
    for text in (
        "annotation KEY is unknown",  # the webhook
        "The controller may narrow the required node affinity",  # an admission policy
        "KEY has no effect",  # a warning
        "tenants.NAME: the tenant has no namespaces",  # the policies file
    ):
        assert text in PAGE, text


def test_messages_begin_with_a_capital_letter_and_are_no_chains() -> None:
    lines = [line.text for line in message_source.log_lines()]
    assert [text for text in lines if re.match("[a-z]", text) and not text.startswith("nccl.servers")] == []
    assert [text for text in lines if "; " in text and "nvidia-smi" not in text] == []


def test_no_warning_of_the_webhook_is_so_long_that_it_is_cut_off() -> None:
    warnings = [text for texts in message_source.warnings("webhook").values() for text in texts]
    assert len(warnings) > 10
    assert [text for text in warnings if len(text) > MOST_WARNING] == []
