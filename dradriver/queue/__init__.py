"""Pods that wait for GPUs: who they are, in which order, and whom it is worth asking about. No I/O.

entries  one waiting pod: what it asks for, parsed once, and how it has fared
waiting  who wants a place, in which order
asking   when blocked kinds are asked whether they may find a place by now
parking  entries that wait for what many wait for
limiter  how many writes may be under way
pace     how many promises may wait for a scheduler
"""
