"""What is wrong with GPUs, and who is told.

kernel_log  what drivers report in the kernel's log
runtime  whether the container runtime gives containers CDI devices
pod_events  telling the pods that hold a GPU
node_events  telling the Node
faults_in_force  which faults are in force, as taints
health_watch  what readings and the kernel's log say, brought together
"""
