"""Talking to the API server.

client      one method a verb
connection  requests and answers as they come, with the token
http        aiohttp, without the system's certificates
resources   the kinds of objects and their paths
codec       decodes JSON into dicts and structs, and encodes it
isolated    objects read one by one, so that an odd one stops no other
stream_lines  the lines of a streamed answer
errors      what the API server refused, or that it gave no answer
config      where the API server is: a kubeconfig, or the pod's service account
reflector   a live copy of all objects of one kind
optional_reflector  a reflector of a kind that not every server has
store       what a reflector keeps, and how it tells of changes
server_clock  the time by the API server's clock
backoff     how long to wait after failures
workqueue   objects that want work: namespaces side by side, pauses after failures
leader      leader election on a Lease
leader_thread  leader election in a thread of its own, so that a busy loop costs no lease
event_recorder  Events about objects, each text counted once
labelled_metrics  metrics with labels of known words
metrics     the reflectors' metrics
"""
