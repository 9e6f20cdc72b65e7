"""The text of ``nvidia-smi topo -m``: for import of machines that one cannot log in to, and to look at.

pasted   the matrix in what people paste
grammar  its cells, checked
topo_m_reader  the machine of them
inferred_topology  what a text implies of paths, switches and NUMA nodes
implied_products  what its links and paths imply of GPUs and CPUs
topo_m_writer  the text of a machine
"""

from dradriver.topology.topo_m.pasted import is_matrix
from dradriver.topology.topo_m.topo_m_reader import read
from dradriver.topology.topo_m.topo_m_writer import write

__all__ = ["is_matrix", "read", "write"]
