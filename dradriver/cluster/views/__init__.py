"""What people are shown of a cluster, by ``gputopo topo --cluster``. Text stands in it as others wrote it.

gone_node_views  nodes whose agent is gone: their machine is not known, who holds their GPUs is
holder_names     who holds a device or is promised it, as claims and their pods are named
node_views       each node's machine, its GPUs, and who holds them
"""
