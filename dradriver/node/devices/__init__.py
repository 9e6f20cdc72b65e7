"""Kinds of devices: what each offers, and what has to be made on the hardware before a container has it.

device_kinds      what a kind of device offers
whole             whole GPUs: nothing has to be made
part_records      what is noted of each kind that is made
hardware_journal  what was changed on hardware: the second of the node's two ledgers
device_manager    makes and undoes, in the one thread that changes hardware
control           the calls that change hardware
"""
