"""MPS control daemons, in a process and a DaemonSet of their own: an agent's upgrade must not end their clients.

main             the command line
supervisor       keeps the daemons that are wanted, and no others
daemon           the MPS control daemon of one GPU
mps_limits       what a daemon and its servers give clients at most
shm              the /dev/shm that clients of a daemon share, and what they leave in it
mount_namespace  mounts, and runs a program in the driver's own file system
mps_files        files by which the agent and this process tell each other what is wanted and what serves
"""
