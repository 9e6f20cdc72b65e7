"""The text of ``nvidia-smi topo -m``: for import of machines that one cannot log in to, and to look at.

reader  the grammar
infer   what a text implies without saying it
writer  the text of a machine
"""

from dradriver.topology.topo_m.reader import read
from dradriver.topology.topo_m.writer import write

__all__ = ["read", "write"]
