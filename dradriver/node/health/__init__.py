"""The faults of GPUs, and the Events that report them.

kernel_log         drivers' reports in the kernel's log
cdi_runtime_check  whether the container runtime gives containers CDI devices
pod_events         Events on the pods that use a GPU with a fault
node_events        Events on the Node about GPUs with a fault
faults_in_force    when a fault comes into force and is over; its taint
health_watch       combines the faults from readings and from the kernel's log; lost GPUs
"""
