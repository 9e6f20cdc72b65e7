"""The whole cluster cache.

cluster_cache  everything, as reflectors and writers change it
snapshot  what a decision sees, and what would be if pods were gone or nodes left out
accounting  which parts of the cache change with a pod or a claim
feature_books  which books of features change with it: those that it concerns
"""
