"""Objects that are read only when a waiting pod names them.

template_reader  specs of ResourceClaimTemplates
nic_slices       slices of NICs
unread_claims    claims that cannot be read whole, and the Event about each
"""
