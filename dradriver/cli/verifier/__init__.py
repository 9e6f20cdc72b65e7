"""The checks of ``gputopo verify``: each check reports PASS, WARN or FAIL, with a repair.

* ``finding``: the result of a check.
* ``machine_checks``: this machine: GPU driver, GPUs, links, MIG, MPS.
* ``nic_checks``: this machine: network cards, and which are near each GPU.
* ``container_checks``: this machine: the container toolkit, CDI, and whether the runtime has CDI enabled.
* ``cluster_checks``: the cluster: versions, the driver's components, slices and other drivers.
* ``driver_pods``: the pods of the driver's components, and their arguments.
* ``agent_checks``: node agents that are missing.
* ``agent_admission_checks``: whether Kubernetes creates node agents: Pod Security, other admission.
* ``policies_checks``: whether all processes use the policies of the ConfigMap.
* ``webhook_checks``: whether the API server calls the webhook, and when its certificates end.
* ``rights_checks``: the access rights of the user who runs the command.
* ``job``: the Job that checks a node from inside.
"""
