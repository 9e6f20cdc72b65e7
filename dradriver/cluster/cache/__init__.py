"""The cluster cache as a whole.

cluster_cache  the cache itself, which reflectors and writers update
snapshot       the read-only view that a decision uses, also for "what if these pods were gone"
accounting     the parts of the cache that change with a pod or a claim
feature_books  what pods use of optional features (NICs, NVLink channels), updated only for these pods
"""
