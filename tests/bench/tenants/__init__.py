"""Teams with caps and weights on a real API server and the stock scheduler, on nodes that are objects only.

`python -m tests.bench.tenants` has pods of five teams come at once and leave after a while, and counts from outside how
often a team holds more than its cap, and how often somebody was placed before another whose turn it was.
"""
