"""The text of ``nvidia-smi topo -m``: for import of machines that one cannot log in to, and to look at.

pasted   the matrix in what people paste
grammar  its cells, checked
reader   the machine of them
infer    what a text implies of paths, switches and NUMA nodes
implied  what its links and paths imply of GPUs and CPUs
writer   the text of a machine
"""

from dradriver.topology.topo_m.pasted import is_matrix
from dradriver.topology.topo_m.reader import read
from dradriver.topology.topo_m.writer import write

__all__ = ["is_matrix", "read", "write"]
