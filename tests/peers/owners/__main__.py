"""`python -m tests.peers.owners [PYTEST'S ARGUMENTS]`: builds others' programs, and tells the stories of their gangs.

``-k jobset`` tells those of one program, which alone is built then. The tests' cluster is used and left where it is
kept (`python -m tests.cluster --name e2e up`).
"""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    # A program is built in a story's time.
    stories = [
        "--override-ini=python_files=story_*.py",
        "--override-ini=faulthandler_timeout=590",
        str(Path(__file__).parent),
    ]
    sys.exit(pytest.main([*stories, "--durations=0", *sys.argv[1:]]))
