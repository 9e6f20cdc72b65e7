"""Kinds of devices: what each offers, and what has to be made on the hardware before a container has it.

device_kinds       what each kind of device offers the agent
whole_gpus         the kind of whole GPUs: nothing has to be made
part_records       what is noted of each kind that is made
hardware_journal   what was changed on hardware: the second of the node's two ledgers
device_manager     makes and undoes devices of any kind, in the one thread that changes hardware
control_interface  the calls that change hardware, which every control of GPUs has
"""
