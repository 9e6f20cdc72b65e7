"""What is wrong with GPUs, and who is told.

kernel_log         what drivers report in the kernel's log
cdi_runtime_check  whether the container runtime gives containers CDI devices
pod_events         Events on the pods that hold a GPU with a fault
node_events        Events on the Node about GPUs with a fault
faults_in_force    when a fault comes into force and is over; its taint
health_watch       brings together what readings and the kernel's log say of GPUs; lost GPUs
"""
