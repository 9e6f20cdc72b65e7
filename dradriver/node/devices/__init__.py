"""The kinds of devices (whole GPUs, MIG instances, shares), and how each kind is found and made on the hardware.

device_kinds       the interface of all kinds of devices
whole_gpus         the kind of whole GPUs: nothing has to be made
part_records       what the hardware journal and the checkpoint store about MIG instances and MPS shares
hardware_journal   the hardware changes on disk: which were begun, and which are done
device_manager     makes and undoes devices of any kind, in the one thread that changes hardware
control_interface  the interface of the calls that change hardware
"""
