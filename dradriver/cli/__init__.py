"""gputopo, also as kubectl gputopo.

* ``main``: the command and its sub-commands, each imported when it is run: ``explain``, ``free``,
  ``lint``, ``quota``, ``slices``, ``topo``, ``plan``, ``nccl``, ``policies``, ``sim``, ``simulate``.
* ``completion``: of ``kubectl gputopo`` in shells.
* ``inputs``: files that a user names.
* ``plan_question``: what ``plan`` can be asked, and the request that it makes.
* ``plan_parts``: what ``plan`` does where shares or MIG slices are asked for.
* ``machine_source``: the options that name a machine, and the machine that they name.
* ``machine_view``: what is shown of one machine.
* ``cluster``: from the kubeconfig to what is shown of a cluster, by ``topo --cluster``, ``explain`` and ``free``.
* ``explainer``: what ``explain`` finds out about a pod.
* ``linter``: manifests as the webhook would admit them, for ``lint``.
* ``simulator``: the cluster, jobs and policies of ``simulate``.
"""
