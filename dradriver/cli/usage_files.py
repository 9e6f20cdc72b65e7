"""A report on GPU time as CSV and as a spreadsheet. Names in it are anybody's: none of them becomes a formula."""

from __future__ import annotations

import csv
import io
from typing import Final

import click

from dradriver.cli.usage_report import HEADS, Report, Row

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_NUMBERS: Final = (
    "GPU hours", "whole GPU hours", "share hours", "slice hours", "idle hours", "cost", "idle cost", "unpriced hours",
)  # fmt: skip
_HOURS: Final = "#,##0.000"
_MONEY: Final = "#,##0.00"
_WIDTH: Final = 32


def heads(report: Report) -> tuple[str, ...]:
    """Return the column heads of a usage report; costs only if there are prices, with their currency."""
    money = f" ({report.currency})" if report.currency else ""
    return (*HEADS[report.by], *(f"{name}{money if 'cost' in name else ''}" for name in _NUMBERS if _has(report, name)))


def numbers(row: Row, report: Report) -> tuple[float, ...]:
    """Return the numbers of one row of a usage report, in the order of ``heads``."""
    every = (
        row.gpu_hours, row.whole_hours, row.share_hours, row.slice_hours, row.idle_hours, row.cost, row.idle_cost,
        row.unpriced_hours,
    )  # fmt: skip
    return tuple(value or 0.0 for name, value in zip(_NUMBERS, every, strict=True) if _has(report, name))


def _has(report: Report, name: str) -> bool:
    return report.total.cost is not None or name not in ("cost", "idle cost", "unpriced hours")


def as_csv(report: Report) -> str:
    """Return a usage report as CSV (RFC 4180), without its sum.

    What a spreadsheet would take for a formula gets an apostrophe before it, as OWASP advises against CSV injection.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow((*heads(report), "from", "to"))
    for row in report.rows:
        writer.writerow((*map(_inert, row.key), *numbers(row, report), report.begin, report.end))
    return text.getvalue()


def _inert(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name


def as_xlsx(report: Report) -> bytes:
    """Return a usage report as a workbook: the rows with their sum, and what they are of.

    Raises:
        click.ClickException: The package that writes it is not there.
    """
    try:
        import xlsxwriter
    except ImportError:
        raise click.ClickException(
            "-o xlsx needs the package XlsxWriter: pip install 'gpu-topology-dra[cli]'; -o csv needs none"
        ) from None
    content = io.BytesIO()
    options = {
        "constant_memory": True,
        "strings_to_formulas": False,
        "strings_to_urls": False,
        "strings_to_numbers": False,
    }
    with xlsxwriter.Workbook(content, options) as book:
        bold, hours, money = (
            book.add_format(form) for form in ({"bold": True}, {"num_format": _HOURS}, {"num_format": _MONEY})
        )
        sheet = book.add_worksheet("usage")
        titles, words = heads(report), len(HEADS[report.by])
        for column, title in enumerate(titles):
            sheet.write_string(0, column, title, bold)
        formats = [money if "cost" in title else hours for title in titles[words:]]
        for line, row in enumerate(report.rows, 1):
            for column, word in enumerate(row.key):
                sheet.write_string(line, column, word)
            for column, value in enumerate(numbers(row, report)):
                sheet.write_number(line, words + column, value, formats[column])
        last = len(report.rows) + 1
        sheet.write_string(last, 0, "total", bold)
        for column, value in enumerate(numbers(report.total, report)):
            sheet.write_number(last, words + column, value, formats[column])
        sheet.set_column(0, words - 1, _WIDTH)
        sheet.set_column(words, len(titles) - 1, _WIDTH // 2)
        sheet.freeze_panes(1, words)
        sheet.autofilter(0, 0, last - 1, len(titles) - 1)
        about = book.add_worksheet("about")
        facts = (
            ("from (UTC)", report.begin), ("to (UTC)", report.end), ("counted until (UTC)", report.counted_until),
            ("by", report.by), ("currency", report.currency),
        )  # fmt: skip
        for line, (name, fact) in enumerate(facts):
            about.write_string(line, 0, name, bold)
            about.write_string(line, 1, fact)
        about.set_column(0, 1, _WIDTH)
    return content.getvalue()
