"""What is wrong with GPUs, and who is told.

kmsg     what drivers report in the kernel's log
runtime  whether the container runtime gives containers CDI devices
events   telling the pods that hold a GPU
node_events  telling the Node
record   which faults are in force, as taints
watch    what readings and the kernel's log say, brought together
"""
