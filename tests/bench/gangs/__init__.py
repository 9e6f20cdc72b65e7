"""Gangs on a real API server and the stock scheduler, on nodes that are objects only.

`python -m tests.bench.gangs big` says how fast one large gang has its seats and is bound; `churn` has hundreds come and
go while the controller is killed again and again, and counts what must never be; `preempt --rounds 20` says how soon a
gang of 8 pods of 8 GPUs is bound after the end of the last pod of lower priority that had to end for it. Cluster,
driver and webhook are those of `tests.bench.throughput`.
"""
