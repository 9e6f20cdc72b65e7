"""The state of the node's network cards, read from /sys.

The code changes nothing, and gives no GPU a taint because of a network card.

ports         one reading: each card's ports, their state, rate, GIDs and error counters
troubles      faults of ports in one reading, found by comparison with sibling ports
port_history  faults of ports within the last hour: a link that comes and goes, growing errors
gpudirect     whether cards can reach the memory of GPUs
nic_watch     reads the ports at an interval; metrics, and Events on the Node about changes
"""
