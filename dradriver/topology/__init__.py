"""A machine: GPUs, links, NUMA, PCIe, NICs; its readers and writers. A library of its own."""
