"""The nodes on which a pod fits, by kube-scheduler's own rules.

The controller narrows a pod to chosen nodes. If the pod does not fit there, it is never bound.

pod_resources     the resources that a pod uses of its node
host_ports        host ports of a pod, and conflicts between two pods
pod_demands       the requirements of one pod for its node, in a form that can be compared and hashed
expressions       evaluates one expression of a selector on one label
columns           texts and numbers of all nodes, one entry per row
labels            rows by label: selectors and required affinity
taints            rows by taint: tolerations
selector_classes  one mask of rows for each class of selectors and tolerations
capacity          free capacity of every node, by resource
node_table        NodeTable, which joins these and knows when a retry can help
"""
