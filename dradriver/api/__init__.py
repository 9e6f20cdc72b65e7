"""Kubernetes objects and this driver's annotations, as typed data. No I/O.

All components of the driver use it.

pod         the request of a pod: annotations, the note (annotation) with the resolved request, the list of alternatives
gangs       gangs, their owners and sizes
claims      ResourceClaims: built, read, compared
slices      ResourceSlices: built from a machine, and read as a machine
policies    the policies file
vocabulary  annotations, values and limits that people write, and error texts about them
base        names, fields of Kubernetes objects, quantities, patches
"""
