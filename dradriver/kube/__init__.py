"""Talking to the API server, and what every process does alike.

client      one method a verb
http        aiohttp, without the system's certificates
resources   the kinds of objects and their paths
codec       JSON into dicts and structs
isolated    objects read one by one, so that an odd one stops no other
lines       the lines of a streamed answer
errors      what the API server refused, or that it gave no answer
config      where the API server is: a kubeconfig, or the pod's service account
reflector   a live copy of all objects of one kind
optional    a reflector of a kind that not every server has
store       what a reflector keeps, and how it tells of changes
leader      leader election on a Lease
events      Events about objects, each text counted once
options     the options that every process has
memory      the cyclic garbage collector, kept off the loop
process     logging, and stopping cleanly on a signal
serve       /healthz, /readyz and /metrics
connections  an HTTP server, and how many connections it holds for how long
labels      metrics with labels of known words
metrics     the reflectors' metrics
followed    files that are replaced while a process runs
policies    the policies in force, and their metrics
"""
