"""The text of ``nvidia-smi topo -m``: to import machines without a login there, and to show machines.

pasted   the lines of the matrix in a pasted text
matrix_cells  the cells of the matrix, checked
topo_m_reader  converts the text to a machine
inferred_topology  paths, switches and NUMA nodes that a text implies
implied_products  GPU and CPU products that its links and paths imply
topo_m_writer  converts a machine to the text
"""

from dradriver.topology.topo_m.pasted import is_matrix
from dradriver.topology.topo_m.topo_m_reader import read
from dradriver.topology.topo_m.topo_m_writer import write

__all__ = ["is_matrix", "read", "write"]
