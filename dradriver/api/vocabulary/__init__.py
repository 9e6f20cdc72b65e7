"""Annotations, values and limits that people write.

annotation_words  every annotation that an author can write, each declared once
values            values of annotations: strategies, numbers, products
container_requests  what a container requests: whole GPUs, shares, MIG
container_limits  GPU limits of this driver and of others
vendor_words      what a vendor's GPUs do not support
simple_cel        CEL selectors that can be evaluated here
nic_requests      drivers of NICs: names, attributes, how a NIC is pinned
messages          error texts about annotations
"""
