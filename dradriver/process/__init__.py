"""What every process of the driver does alike.

options        the options that every process has
run            runs a process to its end, and stops it cleanly on a signal
log_format     log records as text or JSON
health_server  /healthz, /readyz and /metrics
server_connections  an HTTP server, and how many connections it holds for how long
replaced_files  files that are replaced while a process runs
policies_file  the policies in force, and their metrics
watched_policies  the policies in force of a process that watches their ConfigMap
cyclic_gc      the cyclic garbage collector, kept off the loop
"""
