"""MPS control daemons, in their own process and DaemonSet.

They are separate so that an upgrade of the agent does not end them. If a daemon ends, the programs that use its shares
end, too.

main             the command line
supervisor       starts the requested daemons, and ends all others
daemon           the MPS control daemon of one GPU
mps_limits       the limits that a daemon and its servers set for clients
shm              the /dev/shm that clients of a daemon share, and the files that they leave in it
mount_namespace  mounts folders, and runs a program in the driver's own file system
mps_files        the files in which the agent requests daemons, and this process answers
"""
