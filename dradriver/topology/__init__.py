"""A machine: GPUs, links, NUMA, PCIe, NICs; its readers and writers. A library of its own.

machine    the model that every reader produces and every decision is made from
check      what every machine must satisfy
load       one door for whatever describes a machine
codec      a machine as JSON
profiles   machines as data, one YAML file each
topo_m     the text of ``nvidia-smi topo -m``
nccl       NCCL's topology files
paths      PCIe paths from places in the PCI tree
rings      which sets have a ring of links, and how strong its weakest step can be
groups     disjoint groups of well linked GPUs, and an order in which good sets are neighbours
levels     how far two GPUs are from each other, within a server and between servers
cpulist    sets of CPUs as the kernel writes them
natural    the order in which people count
synthetic  identities for machines that have none
errors     what is wrong with a description
"""
