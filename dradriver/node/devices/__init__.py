"""Kinds of devices: what each offers, and what has to be made on the hardware before a container has it.

kinds             what a kind of device offers
whole             whole GPUs: nothing has to be made
nvidia            MIG devices and shares, and the hardware of this node
hardware_journal  what was changed on hardware: the second of the node's two ledgers
device_manager    makes and undoes, in the one thread that changes hardware
assemble          which kinds a node has, and what changes its hardware
control           the calls that change hardware
simulated         hardware that can be changed, in a file
"""
