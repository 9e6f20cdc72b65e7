"""Gangs on a real API server and the stock scheduler, on nodes that are objects only.

`python -m tests.bench.gangs big` says how fast one large gang has its seats and is bound; `churn` has hundreds come and
go while the controller is killed again and again, and counts what must never be. Cluster, driver and webhook are those
of `tests.bench.throughput`.
"""
