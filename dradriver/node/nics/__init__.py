"""The state of the node's network cards, read only, from /sys: nothing is ever changed, and no GPU tainted for them.

ports         one reading: each card's ports, their state, rate, GIDs and error counters
troubles      what is wrong with a port in one reading, by what its siblings are
port_history  what is wrong with a port within the last hour: a link that comes and goes, growing errors
gpudirect     whether cards can reach the memory of GPUs
nic_watch     reads the ports again and again; metrics, and Events on the Node about what changed
"""
