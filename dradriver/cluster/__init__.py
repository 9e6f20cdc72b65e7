"""The picture of the cluster, for decisions: as reflectors show it, and the controller's own writes at once.

``gputopo explain`` and ``free`` fill the same picture from one list of each kind.

picture      the whole of it, as reflectors and writers change it
books        what is written into which of the books below when a pod or a claim is another
conflicts    whether what claims are pinned to goes together, and who has to end for one
records      what is kept of claims, nodes, device classes and templates
slice_records  what is kept of slices, and of the machines that they describe
pods         what is kept of pods: ours whole, of others what they take
ends         when pods, and what they hold, are ended at the latest
versions     which of two states of an object is the newer one
templates    all templates, and the specs of those that waiting pods name

Pods:

gangs        which of them start together, by what they and their makers wrote
kept_places  where lost ones were, for those that are made anew for them

Nodes:

nodes        all nodes as arrays: whom they take, what they have left
node_usage   what our pods take from them
channels     who has their channels of multi-node NVLink
neighbours   pods of ours that are not to be beside each other
kueue_topologies  the levels of the network as Kueue has them
network      where nodes stand in the network, by their labels
running_units  what runs on GPUs, unit by unit, and what it would cost to end it
gone_agents  nodes whose agent is gone while claims hold their GPUs
refusals     nodes on which the scheduler found no room, by kind of pod
volumes      where the volumes of waiting pods are, read when one names them

GPUs:

devices      what a device of a slice says: which GPU it is or is a part of, and how that may be had in parts
inventory    all GPUs as the allocator sees them
fleets       what of them whoever looks for a place may have, and what it would be without some claims
views        the GPUs that each tenant may have, by the partitions in force
pools        a node's slices, read together with the machine that they describe
remaining    what of a node's GPUs is left beside what claims hold, as the allocator is told it
reserved     which of them are kept for some who wait
offered      slices, less what taint rules keep, taken in for the inventory
joined_slices  another driver's devices as GPUs by identity
nics         NICs that other drivers hand out, and who has them
nic_counts   how many of them nodes have for who asks for some
nic_ways     how far they are from their node's GPUs
nic_devices  what a slice says of one
taint_rules  which devices administrators' rules keep new claims off
tabulating   tables of new kinds of machines, made in another process

Claims:

claims  where each claim stands, what it holds, and where its pods count
holds        who holds which device
gpu_states  what becomes of each GPU, in one word
gpu_parts  how many GPUs a part of one is, and what a request comes to on each product
gpu_time     how much of which GPUs each claim has
gpu_hours    what that came to in each hour
claim_users  the pods of each claim, and who leads those that share one
placement    a decision by identity
exclusive_namespaces  which numbers stand for namespaces whose GPUs' parts are theirs alone

For people:

shown        nodes with their GPUs and who holds them, as gputopo shows them
"""
