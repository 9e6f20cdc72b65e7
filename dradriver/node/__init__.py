"""The node agent: reads the machine, publishes its slices, prepares claims for the kubelet.

main             the agent as a process
agent            creates, starts and stops the components of the agent
addon_agent      the agent next to another driver that allocates the GPUs
discovery        reading the machine
health           faults of GPUs, and Events about them
idle             claims whose GPUs do nothing
nics             faults of network cards
publishing       the node's ResourceSlices
kubelet          the gRPC servers that the kubelet calls
claims           preparing claims for pods, and the records of prepared claims
vendors          the code for each vendor: reading its GPUs, giving them to containers
devices          whole GPUs, MIG instances and shares, and making them on the hardware
mps              MPS control daemons, in a process of their own
journal          records on disk that survive a crash, one file for each entry
lock             file locks between two instances of the agent
gpu_work         how much a GPU worked between two readings
faults           the kinds of faults of a GPU, and their repairs
repairs          meaning and repair of fault values such as XIDs
container_edits  device nodes, mounts and variables that a container gets
atomic_files     writes files completely or not at all
selinux          labels for files of the host that containers get
api_server       requests to the API server, except those about slices
agent_options    the agent's options, and the parser of its command line
hardware         chooses the code that reads and changes the hardware, by the options
boot             the id of a boot
threads          calls that may hang, outside the event loop
metrics          the agent's metrics
errors           errors that end up in a pod's events
protos           the kubelet's gRPC stubs, generated
"""
