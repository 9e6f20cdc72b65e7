"""Pods in the cluster cache, and what they use.

gang_pods    which pods start together
kept_places  nodes of lost gang members, for the pods that replace them
claim_accounts  where each claim stands, what it uses, and where its pods count
claim_users  the pods of each claim, and the leader of those that share one
scheduler_refusals  nodes on which the scheduler found no room, by equivalence class of pods
volumes      where the volumes of waiting pods are, read when a pod names one
pod_rules    what a pod requires of other pods: affinity, anti-affinity, topology spread, host ports
neighbours   which nodes these rules leave
foreign_pods  where foreign pods are, by labels and host ports
unknown_rules  which rules of a pod only the scheduler can evaluate
nvlink_channels  which claim uses a node's channel of multi-node NVLink
other_claims  where claims of other drivers are that waiting pods name
node_usage   CPU, memory and other resources that our pods use on nodes
gpu_time     which fraction of which GPUs each claim uses
gpu_hours    GPU time in each hour
"""
