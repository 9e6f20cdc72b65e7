"""What importing aiohttp does to the process, and does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.paths import REPO

_SAID = """
import os, ssl
before = dict(os.environ)
read = []
ssl.SSLContext.load_default_certs = lambda self, *_: read.append(os.environ.get("SSL_CERT_FILE"))
import dradriver.kube.client
assert dict(os.environ) == before
ssl.create_default_context()
print(read)
"""


@pytest.mark.slow
@pytest.mark.parametrize("file", [None, "/my/ca.pem"])
def test_the_systems_certificates_are_not_read_before_they_are_needed(file: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    environment |= {"SSL_CERT_FILE": file} if file else {}
    said = subprocess.run(
        [sys.executable, "-c", _SAID], env=environment, cwd=REPO, capture_output=True, check=True, timeout=60
    )
    assert said.stdout.decode().strip() == str([os.devnull, file])
