"""`python -m tests.peers.owners [PYTEST'S ARGUMENTS]`: builds others' programs, and tells the stories of their gangs.

``-k jobset`` tells those of one program, which alone is built then. The tests' cluster is used and left where it is
kept (`python -m tests.cluster --name e2e up`).
"""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    stories = ["--override-ini=python_files=story_*.py", str(Path(__file__).parent)]
    sys.exit(pytest.main([*stories, "--durations=0", *sys.argv[1:]]))
