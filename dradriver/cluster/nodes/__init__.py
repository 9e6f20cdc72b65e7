"""Which nodes a pod fits on, by kube-scheduler's own rules: a pod that is lifted onto another is stuck.

pod_resources     what a pod takes from its node
host_ports        ports of the host that a pod uses, and when two pods are in conflict for them
pod_demands       what one pod asks of a node, in a form that can be compared and hashed
expressions       what an expression says of one label
columns           texts and numbers of all nodes, one entry a row
labels            rows by label: selectors and required affinity
taints            rows by taint: tolerations
selector_classes  one mask of rows for each class of selectors and tolerations
capacity          what every node has left, by resource
node_table        NodeTable, which joins them and knows when trying again may help
"""
