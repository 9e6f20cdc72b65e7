"""The command ``gputopo``, also as ``kubectl gputopo``.

* ``main``: the command and its sub-commands. The module of a sub-command is imported only when it runs.
* A module for each sub-command, of the same name: ``defrag``, ``explain``, ``fault``, ``free``,
  ``health``, ``idle``, ``lint``, ``nccl``, ``plan``, ``policies``, ``queue``, ``quota``, ``serve``, ``simulate``,
  ``slices``, ``tenants``, ``topo``, ``uninstall``, ``usage``, ``verify``. Each has its options and its output.
* ``completion``: shell completion of ``kubectl gputopo``.
* ``inputs``: files that a user names, and numbers that a user gives.
* ``period``: the time range that a user names for ``usage``.
* ``plan_question``: the options of ``plan``, and the request that ``plan`` makes from them.
* ``plan_gang``: ``plan --gang``, which finds nodes for the pods of a gang in a cluster.
* ``plan_parts``: ``plan`` for shares and MIG slices.
* ``machine_source``: the options that name a machine, and the machine that they name.
* ``machine_view``: the view of one machine: matrix, groups and devices.
* ``simulate_tables``: the tables and charts of ``simulate``.
* ``tenant_quotas``: the quotas that ``quota`` makes from the caps of tenants.
* ``usage_report``: GPU time added up for ``usage``; ``usage_files`` writes that report as CSV and Excel files.
* ``cluster``: reads the user's cluster and makes the views of it that several commands share.
* ``explainer``: the facts that ``explain`` finds out about a pod.
* ``linter``: manifests as the webhook would admit them, for ``lint``.
* ``page``: the page of ``serve``.
* ``simulator``: the cluster, jobs and policies of ``simulate``.
* ``verifier``: the checks of ``verify``.
"""
