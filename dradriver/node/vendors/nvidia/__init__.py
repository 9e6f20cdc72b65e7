"""NVIDIA's GPUs. No code outside this folder calls NVML.

discovery  reads the GPUs by NVML, and brings them into containers
devices    kinds of fractions, and the code that changes hardware
simulated_nvidia  the container edits of a simulated GPU
xid_reports  XIDs: errors of GPUs that the driver reports in the kernel's log
sxid_reports  SXids: errors of NVSwitches in the kernel's log
xids       what each XID means
"""
