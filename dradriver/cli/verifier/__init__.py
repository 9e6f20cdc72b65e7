"""What ``gputopo verify`` looks at: each check says PASS, WARN or FAIL, and what to do.

finding        what a check says
machine        this machine: driver, GPUs, links, MIG, MPS
nics           this machine: network cards, and which are near each GPU
containers     this machine: the container toolkit, CDI, and whether the runtime has it on
parts          which pods are the driver's parts
cluster        versions, the driver's parts, slices and other drivers
agents         node agents that are missing
used_policies  whether all processes use the policies of the ConfigMap
admission      the webhook, and its certificates
rights         what the user of the command may do
job            the Job that looks at a node from inside
"""
