"""The whole cluster cache.

picture  everything, as reflectors and writers change it
books    which parts of the cache change with a pod or a claim
"""
