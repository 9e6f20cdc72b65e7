"""MPS control daemons, in a process and a DaemonSet of their own: an agent's upgrade must not end their clients.

main        the command line
supervisor  keeps the daemons that are wanted
daemon      the daemon of one GPU
mps_limits  what it and its servers give clients at most
shm         what clients leave in their common /dev/shm
mount_namespace  running it in the driver's own file system
mps_files   what the agent and this process tell each other
"""
