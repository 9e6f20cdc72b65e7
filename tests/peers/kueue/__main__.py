"""`python -m tests.peers.kueue MANAGER CHART`: tells what a Kueue admits and charges.

MANAGER is the path of Kueue's own program (``manager`` in its image), CHART its chart's folder, of the same version.
"""

import sys
from pathlib import Path

from tests.peers.beside import run

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tests.peers.kueue MANAGER CHART")
    sys.exit(run("tests.peers.kueue.story", *(str(Path(given).resolve(strict=True)) for given in sys.argv[1:])))
