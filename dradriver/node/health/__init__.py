"""What is wrong with GPUs, and who is told.

faults   what can be wrong, and what to do about it
record   which faults are in force, as taints
trouble  what concerns all GPUs alike
"""
