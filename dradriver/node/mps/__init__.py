"""MPS control daemons, in a process and a DaemonSet of their own: an agent's upgrade must not end their clients.

files    what the agent and this process tell each other
"""
