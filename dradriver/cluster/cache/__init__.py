"""The whole cluster cache.

picture   everything, as reflectors and writers change it
snapshot  what a decision sees, and what would be if pods were gone or nodes left out
books     which parts of the cache change with a pod or a claim
"""
