"""Objects that are read only when a waiting pod names them.

prerequisites    requests what a waiting pod names
template_reader  specs of ResourceClaimTemplates
nic_slices       slices of NICs
unread_claims    claims that cannot be read whole, and the Event about each
"""
