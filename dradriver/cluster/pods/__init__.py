"""Pods in the cluster cache, and what they use.

gang_pods    which pods start together
kept_places  places of lost gang members, kept for the pods that replace them
claim_accounts  the state of each claim, the devices that it uses, and the node on which its pods count
claim_users  the pods of each claim, and the pod for which a shared claim is chosen
scheduler_refusals  nodes on which the scheduler found no room, by equivalence class of pods
volumes      the nodes that can reach the volumes of waiting pods
pod_rules    what a pod requires of other pods: affinity, anti-affinity, topology spread, host ports
neighbours   the nodes on which these rules of a pod are met
foreign_pods  foreign pods on nodes, by labels and host ports
unknown_rules  the rules of a pod that only the scheduler can evaluate
nvlink_channels  which claim uses a node's channel of multi-node NVLink
other_claims  the nodes of other drivers' claims that waiting pods name
node_usage   CPU, memory and other resources that this driver's pods use on nodes
gpu_time     which fraction of which GPUs each claim uses
gpu_hours    GPU time in each hour
"""
