"""Pods bound per second on a real API server and the stock scheduler, on nodes that are objects only.

`python -m tests.bench.throughput` compares a pod with our annotation to one whose claim says `count: 4` or
`matchAttribute`, and to one without GPUs, all in one run. It needs what the tests' local cluster needs.
"""
