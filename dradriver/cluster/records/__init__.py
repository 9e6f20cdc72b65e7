"""What the cluster cache keeps of each object.

records        claims, nodes, device classes and templates
pod_records    pods: ours whole, of others what they use
slice_records  slices, and the machines that they describe
devices        what a device says: which GPU, and in which fractions
object_versions  which of two states of an object is newer
placement      a decision, by identity
templates      templates, and specs of those that waiting pods name
"""
