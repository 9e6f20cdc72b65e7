"""Which Python and packages stand for the image's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from image import assemble
from tests import image_python

CONTENTS: dict[str, Any] = {"debian": {"release": {"bookworm": {"python": "3.11"}, "trixie": {"python": "3.13"}}}}
PROJECT: dict[str, Any] = {
    "dependency-groups": {
        "test": ["pytest>=8", "jsonpatch>=1"],
        "lint": ["grpcio-tools==1.76.0"],
        "dev": [{"include-group": "test"}, {"include-group": "lint"}, "uv>=0.8"],
    }
}
RUNTIME = "# by make lock\nprotobuf==7.1 \\\n    --hash=sha256:a\nnumpy==2.4 \\\n    --hash=sha256:b\n"
DEV = """\
grpcio-tools==1.76.0 \\
    --hash=sha256:c
numpy==2.4 ; python_full_version < '3.12' \\
    --hash=sha256:b
numpy==2.5 ; python_full_version >= '3.12' \\
    --hash=sha256:d
protobuf==6.33 \\
    --hash=sha256:e
pytest==9.2.0 \\
    --hash=sha256:f \\
    --hash=sha256:g
uv==0.13 \\
    --hash=sha256:h
"""


@pytest.mark.parametrize(
    ("codename", "wanted"),
    [("bookworm", ["3.11", "3.13"]), ("trixie", ["3.13", "3.11"]), ("", ["3.11", "3.13"]), ("sid", ["3.11", "3.13"])],
)
def test_the_image_that_is_built_here_comes_first(codename: str, wanted: list[str]) -> None:
    assert image_python.minors(CONTENTS, codename) == wanted


def test_tests_get_the_images_packages_and_no_linters() -> None:
    kept = "pytest==9.2.0 \\\n    --hash=sha256:f \\\n    --hash=sha256:g\nuv==0.13 \\\n    --hash=sha256:h\n"
    assert image_python.tools(DEV, RUNTIME, PROJECT) == kept


def test_a_python_is_taken_by_its_minor() -> None:
    here = "{}.{}".format(*sys.version_info)
    assert image_python.interpreter(["2.9"]) is None
    assert (image_python.interpreter(["2.9", here]) or "").endswith(f"python{here}")


@pytest.mark.slow
def test_without_such_a_python_the_tests_run_in_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(assemble, "read_contents", lambda: {"debian": {"release": {"old": {"python": "2.9"}}}})
    monkeypatch.delenv("CI", raising=False)
    failing = tmp_path / "test_one.py"
    failing.write_text("import sys\ndef test(): print(sys.executable); assert False\n")
    assert image_python.main([str(failing), "-p", "no:cacheprovider"]) == pytest.ExitCode.TESTS_FAILED
    shown = capfd.readouterr()
    assert "python2.9" in shown.err
    assert sys.executable in shown.out


def test_in_ci_there_must_be_such_a_python(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(assemble, "read_contents", lambda: {"debian": {"release": {"old": {"python": "2.9"}}}})
    monkeypatch.setenv("CI", "true")
    assert image_python.main(["--version"]) == 1
    assert "Install python2.9" in capfd.readouterr().err
