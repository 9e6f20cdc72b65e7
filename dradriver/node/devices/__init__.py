"""Kinds of devices: what each offers, and what has to be made on the hardware before a container has it.

kinds      what a kind of device offers
whole      whole GPUs: nothing has to be made
made       an entry of the ledger of what was changed on hardware
workshop   makes and undoes, in the one thread that changes hardware
control    the calls that change hardware
simulated  hardware that can be changed, in a file
"""
