"""The files of ``gputopo usage``: the report on GPU time as CSV and as a spreadsheet.

Names are escaped, so that a spreadsheet program does not run them as formulas.
"""

from __future__ import annotations

import csv
import io
from typing import Any, Final

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
    """Return the column heads in the files of a usage report; costs only if there are prices, with their currency."""
    money = f" ({report.currency})" if report.currency else ""
    return (*HEADS[report.by], *(f"{name}{money if 'cost' in name else ''}" for name in _NUMBERS if _has(report, name)))


def numbers(row: Row, report: Report) -> tuple[float, ...]:
    """Return the numbers of one row in the files of a usage report (CSV, Excel), in the order of ``heads``."""
    every = (
        row.gpu_hours, row.whole_hours, row.share_hours, row.slice_hours, row.idle_hours, row.cost, row.idle_cost,
        row.unpriced_hours,
    )  # fmt: skip
    return tuple(value or 0.0 for name, value in zip(_NUMBERS, every, strict=True) if _has(report, name))


def _has(report: Report, name: str) -> bool:
    return report.total.cost is not None or name not in ("cost", "idle cost", "unpriced hours")


def as_csv(report: Report) -> str:
    """Return the CSV file (RFC 4180) of a usage report, without its sum.

    A text that a spreadsheet would take for a formula gets a leading apostrophe, as OWASP advises against CSV
    injection.
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
    """Return the Excel file of a usage report: a sheet with the rows and their sum, and a sheet about the report.

    Raises:
        click.ClickException: The package XlsxWriter, which writes it, is not installed.
    """
    try:
        import xlsxwriter
    except ImportError:
        raise click.ClickException(
            "-o xlsx needs the package XlsxWriter. Run pip install 'gpu-topology-dra[cli]', or write -o csv."
        ) from None
    content = io.BytesIO()
    options = {
        "constant_memory": True,  # cells must be written row by row
        "strings_to_formulas": False,  # names in the report are untrusted
        "strings_to_urls": False,
        "strings_to_numbers": False,
    }
    with xlsxwriter.Workbook(content, options) as book:
        bold = book.add_format({"bold": True})
        _write_rows(book, report, bold)
        _write_about(book, report, bold)
    return content.getvalue()


def _write_rows(book: Any, report: Report, bold: Any) -> None:
    """Write the sheet ``usage``: a head, the rows of a report, and their sum.

    ``book`` is the Excel file, ``bold`` its format for heads.
    """
    hours_format, money_format = book.add_format({"num_format": _HOURS}), book.add_format({"num_format": _MONEY})
    sheet = book.add_worksheet("usage")
    titles, name_columns = heads(report), len(HEADS[report.by])
    formats = [money_format if "cost" in title else hours_format for title in titles[name_columns:]]

    def write_numbers(line: int, row: Row) -> None:
        for column, value in enumerate(numbers(row, report)):
            sheet.write_number(line, name_columns + column, value, formats[column])

    for column, title in enumerate(titles):
        sheet.write_string(0, column, title, bold)
    for line, row in enumerate(report.rows, 1):
        for column, name in enumerate(row.key):
            sheet.write_string(line, column, name)
        write_numbers(line, row)
    total_line = len(report.rows) + 1
    sheet.write_string(total_line, 0, "total", bold)
    write_numbers(total_line, report.total)

    sheet.set_column(0, name_columns - 1, _WIDTH)
    sheet.set_column(name_columns, len(titles) - 1, _WIDTH // 2)
    sheet.freeze_panes(1, name_columns)
    sheet.autofilter(0, 0, total_line - 1, len(titles) - 1)


def _write_about(book: Any, report: Report, bold: Any) -> None:
    """Write the sheet ``about``: the period of a report, and what its rows stand for.

    ``book`` is the Excel file, ``bold`` its format for heads.
    """
    sheet = book.add_worksheet("about")
    facts = (
        ("from (UTC)", report.begin), ("to (UTC)", report.end), ("counted until (UTC)", report.counted_until),
        ("by", report.by), ("currency", report.currency),
    )  # fmt: skip
    for line, (name, fact) in enumerate(facts):
        sheet.write_string(line, 0, name, bold)
        sheet.write_string(line, 1, fact)
    sheet.set_column(0, 1, _WIDTH)
