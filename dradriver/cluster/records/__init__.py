"""The fields that the cluster cache keeps of each object.

records        claims, nodes, device classes and templates
pod_records    pods: all of this driver's pods, and what foreign pods use
slice_records  slices, and the machines that they describe
devices        a device of a slice: its GPU, and the fractions it can be divided into
object_versions  which of two states of an object is newer
placement      a placement decision, with GPUs by uuid
templates      templates, and the specs of those that waiting pods name
"""
