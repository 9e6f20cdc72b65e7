"""Annotations, values and limits that people write.

annotation_words  every annotation that an author can write, each declared once
values            reads the text of an annotation as a value: strategies, numbers, products
container_requests  the containers' requests, and the pod's request made of them: whole GPUs, shares, MIG
container_limits  which GPUs the names and values of container limits request, in the notation of this driver or others
vendor_words      properties that a vendor's GPUs do not support
simple_cel        CEL selectors that this driver can evaluate
nic_requests      drivers of NICs: names, attributes, how a NIC is pinned
messages          error texts about annotations
"""
