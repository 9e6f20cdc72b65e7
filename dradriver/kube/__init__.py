"""The client of the Kubernetes API server.

client      the client: one method for each verb
connection  sends requests with the token, and streams answers
http        imports aiohttp without loading the system's certificates
resources   the kinds of objects and their paths
codec       decodes JSON into dicts and structs, and encodes it
isolated    decodes objects one by one, so that an unreadable one does not stop the others
stream_lines  the lines of a streamed answer
errors      errors: the API server refused a request, or gave no answer
config      the address and credentials of the API server: from a kubeconfig, or the pod's service account
reflector   a live copy of all objects of one kind
optional_reflector  a reflector for a kind that not every server has
store       the objects that a reflector keeps, and its calls about changes
server_clock  the time by the API server's clock
backoff     how long to wait after failures
workqueue   a queue of objects to work on: namespaces in parallel, pauses after failures
leader      leader election with a Lease
leader_thread  leader election in its own thread, so that a busy loop does not lose the lease
event_recorder  Events about objects; a repeated Event is counted
labelled_metrics  metrics whose labels have known values
metrics     the reflectors' metrics
"""
