"""Functions that every process of the driver uses: options, logs, health server, policies.

options        the options that every process has
run            runs a process to its end, and stops it cleanly on a signal
log_format     log records as text or JSON
health_server  /healthz, /readyz and /metrics
server_connections  an HTTP server with limits on the number and age of its connections
replaced_files  files that are replaced while a process runs
policies_file  the policies in force, and their metrics
watched_policies  the policies in force of a process that watches their ConfigMap
cyclic_gc      full runs of Python's cyclic garbage collector only once an hour
"""
