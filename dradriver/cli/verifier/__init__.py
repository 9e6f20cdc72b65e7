"""What ``gputopo verify`` looks at: each check says PASS, WARN or FAIL, and what to do.

* ``finding``: what a check says.
* ``machine_checks``: this machine: driver, GPUs, links, MIG, MPS.
* ``nic_checks``: this machine: network cards, and which are near each GPU.
* ``container_checks``: this machine: the container toolkit, CDI, and whether the runtime has it on.
* ``cluster_checks``: the cluster: versions, the driver's parts, slices and other drivers.
* ``driver_pods``: which pods are the driver's parts, and their arguments.
* ``agent_checks``: node agents that are missing.
* ``agent_admission_checks``: whether Kubernetes creates node agents: Pod Security, other admission.
* ``policies_checks``: whether all processes use the policies of the ConfigMap.
* ``webhook_checks``: whether the API server asks the webhook, and when its certificates end.
* ``rights_checks``: what the user of the command may do.
* ``job``: the Job that looks at a node from inside.
"""
