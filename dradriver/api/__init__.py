"""Objects of Kubernetes and the annotations of this driver, as typed data. No I/O.

pod         the request of a pod: annotations, the resolved note, the list of alternatives
gangs       gangs, their owners and sizes
claims      ResourceClaims: built, read, compared
slices      ResourceSlices: a machine as slices, and back
policies    the policies file
vocabulary  annotations, values and limits that people write, and error texts about them
base        names, parts of Kubernetes objects, quantities, patches
"""
