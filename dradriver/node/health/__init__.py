"""What is wrong with GPUs, and who is told.

kmsg     XIDs from the kernel's log
xids     what each of them means
runtime  whether the container runtime gives containers CDI devices
events   telling the pods that hold a GPU
record   which faults are in force, as taints
watch    what readings and the kernel's log say, brought together
"""
