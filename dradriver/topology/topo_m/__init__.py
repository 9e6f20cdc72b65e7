"""The text of ``nvidia-smi topo -m``: for import of machines that one cannot log in to, and to look at.

pasted   the lines of the matrix in what people paste
matrix_cells  the cells of the matrix, checked
topo_m_reader  from the text to a machine
inferred_topology  what a text implies of paths, switches and NUMA nodes
implied_products  what its links and paths imply of GPUs and CPUs
topo_m_writer  from a machine to the text
"""

from dradriver.topology.topo_m.pasted import is_matrix
from dradriver.topology.topo_m.topo_m_reader import read
from dradriver.topology.topo_m.topo_m_writer import write

__all__ = ["is_matrix", "read", "write"]
