"""Kueue as a process beside a control plane without nodes: `python -m tests.peers.kueue`."""
