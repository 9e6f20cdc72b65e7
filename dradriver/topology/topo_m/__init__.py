"""The text of ``nvidia-smi topo -m``: for import of machines that one cannot log in to, and to look at."""

from dradriver.topology.topo_m.reader import read
from dradriver.topology.topo_m.writer import write

__all__ = ["read", "write"]
