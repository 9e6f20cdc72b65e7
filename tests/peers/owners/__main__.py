"""`python -m tests.peers.owners [PYTEST'S ARGUMENTS]`: builds the programs, and tells their stories on the tests' cluster.

``-k jobset`` tells those of one program, which alone is built then. A cluster that is kept (`python -m tests.cluster --name
e2e up`) is used and left.
"""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    stories = ["--override-ini=python_files=story_*.py", str(Path(__file__).parent)]
    sys.exit(pytest.main([*stories, "--durations=0", *sys.argv[1:]]))
