"""The node agent: reads the machine, publishes its slices, prepares claims for the kubelet.

main             the agent as a process
agent            the parts of the agent, and how they start and stop together
addon_agent      the same next to another driver that allocates the GPUs
discovery        reading the machine
health           what is wrong with GPUs
idle             which claims' GPUs do nothing
nics             what is wrong with network cards
publishing       the node's ResourceSlices
kubelet          the gRPC servers that the kubelet calls
claims           preparing claims, and remembering what is prepared
vendors          what is one vendor's: reading its GPUs, handing them out
devices          kinds of devices, and making them
mps              MPS control daemons, in a process of their own
journal          a ledger on disk, one file an entry
lock             locks of files that hold between two instances of the agent
gpu_work         what a GPU did between two looks
faults           what can be wrong with a GPU, and what to do about it
repairs          what values of a fault mean, and their repairs
container_edits  device nodes, mounts and variables that a container is given
atomic_files     files that are all there or not at all
selinux          labels for what containers are given of the host's
api_server       what is asked of the API server in addition to slices
agent_options    the agent's options, and the parser of its command line
hardware         what reads a node's hardware, and what changes it, by the options
boot             what tells one boot from another
threads          calls that may hang, outside the event loop
metrics          what the agent counts
errors           errors that end up in a pod's events
protos           the kubelet's gRPC stubs, generated
"""
