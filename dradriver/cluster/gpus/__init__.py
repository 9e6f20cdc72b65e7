"""GPUs in the cluster cache.

inventory             all GPUs as the allocator sees them
fleets                the GPUs that a request may use; the same without some claims
tenant_fleets         the GPUs that each tenant may use by the policies file
offered_slices        slices without the devices that taint rules exclude
taint_rules           which devices DeviceTaintRules exclude
pools                 the slices of one node, read as one machine
joined_slices         the GPU behind each device name of another driver
device_holders        which claim uses which device
remaining             what is left of a node's GPUs
reserved              GPUs reserved for waiting workloads
gpu_parts             fractions of GPUs, and what a request means on each product
tabulating            the bandwidths of all GPU sets of new kinds of machines, computed in another process
exclusive_namespaces  numbers for the namespaces that use GPUs divided for one namespace at a time
node_locations        where nodes stand in the network, by labels
kueue_topologies      levels of the network from Kueue's Topology
gone_agents           nodes without an agent, while claims use their GPUs
"""
