"""The views of a cluster for people, as ``gputopo topo --cluster`` shows them.

Texts of other authors, such as the names of machines, are not escaped.

gone_node_views  nodes whose agent is gone, with the users of their GPUs; the machine is not known
holder_names     names of the claims and pods that use a device or have a tentative placement on it
node_views       the machine of each node, its GPUs, and their users
"""
