"""Reads objects only when a waiting pod names them.

prerequisites    requests the objects that a waiting pod names
template_reader  specs of ResourceClaimTemplates
nic_slices       ResourceSlices of NICs
unread_claims    claims that cannot be read completely, and the Event about each
"""
