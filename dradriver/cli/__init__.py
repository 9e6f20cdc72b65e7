"""The command ``gputopo``, also as ``kubectl gputopo``.

* ``main``: the command and its sub-commands, each imported when it is run.
* A module for each sub-command, of the same name: ``defrag``, ``explain``, ``fault``, ``free``,
  ``health``, ``idle``, ``lint``, ``nccl``, ``plan``, ``policies``, ``queue``, ``quota``, ``serve``, ``simulate``,
  ``slices``, ``tenants``, ``topo``, ``uninstall``, ``usage``, ``verify``. Each has its options, and what it prints.
* ``completion``: shell completion of ``kubectl gputopo``.
* ``inputs``: files that a user names, and numbers that a user gives.
* ``period``: the stretch of time that a user names for ``usage``.
* ``plan_question``: what ``plan`` can be asked, and the request that it makes.
* ``plan_gang``: ``plan --gang``, where the pods of a gang would go in a cluster.
* ``plan_parts``: ``plan`` for shares and MIG slices.
* ``machine_source``: the options that name a machine, and the machine that they name.
* ``machine_view``: what is shown of one machine.
* ``simulate_tables``: the tables and pictures of ``simulate``.
* ``tenant_quotas``: the quotas that ``quota`` makes from the caps of tenants.
* ``usage_report``: GPU time added up for ``usage``; ``usage_files`` writes that report as CSV and Excel files.
* ``cluster``: from the kubeconfig to the listed cluster and what is shown of it.
* ``explainer``: what ``explain`` finds out about a pod.
* ``linter``: manifests as the webhook would admit them, for ``lint``.
* ``page``: the page of ``serve``.
* ``simulator``: the cluster, jobs and policies of ``simulate``.
* ``verifier``: the checks of ``verify``.
"""
