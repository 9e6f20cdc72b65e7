"""Gangs of what JobSet, LeaderWorkerSet, Kubeflow's operators and Kueue make, with these programs as they are.

Each is built from its module and runs in the tests' cluster by its own manifests, with its own rights and webhooks,
beside the driver. The stories are pytest files that only ``python -m tests.peers.owners`` runs: building the programs
takes ten minutes.
"""
