"""``gputopo topo --cluster``: every node's machine, and who holds which GPU."""
