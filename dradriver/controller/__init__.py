"""The cluster controller: gives waiting pods their GPUs. Queue, decide, commit.

What is known:

picture     the cluster as reflectors show it, and our own writes at once
claimants   the pods of each claim, and who leads those that share one
taking      what our pods take from their nodes
neighbours  pods of ours that are not to be beside each other
refusals    nodes on which the scheduler found no room, by kind of pod
records     what is kept of claims, nodes, slices and device classes
pods        what is kept of pods: ours whole, of others what they take
nodes       all nodes as arrays: whom they take, what they have left
pools       a node's slices, read together with the machine that they describe
inventory   all GPUs as the allocator sees them
holds       who holds which device
volumes     where the volumes of waiting pods are, read when one names them
templates   all templates, and the specs of those that waiting pods name
versions    which of two states of an object is the newer one
tenants     which numbers stand for namespaces whose GPUs' parts are theirs alone
taint_rules  which devices administrators' rules keep new claims off
theirs      another driver's devices as GPUs by identity

What is done:

worker      looks at pods that changed, gives places
entries     one waiting pod: its wish, parsed once, and how it has fared
queue       who wants a place, in which order, and whom it is worth asking about
decide      where a pod goes: from the picture to a placement
placement   a decision by identity
review      what has to be done for one pod now; when a promise ends
causes      why it ends
commit      the writes: claims and pods
owners      pods written into the claim that they share, those that come together in one write
outcome     what comes of a write: what a failure says of the server, the moment, the object
writers     does them for many at once, and sees to what comes of them
limiter     how many writes may be under way
asking      when blocked kinds are asked whether they may find a place by now
parking     entries that wait for what many wait for
pace        how many promises may wait for a scheduler
reasons     why pods wait, written on them
tabulating  tables of new kinds of machines, made in another process
background  work that goes on for ever beside all that
audit       whether the books are what the reflectors show
unread      claims that cannot be read whole, and the Event that says so
collecting  claims of ours that nothing else removes
statics     templates of the claims of pods that the scheduler alone places
rounds      objects that want work: namespaces side by side, pauses after failures
specs       specs of templates, read when a waiting pod names one

The process:

controller  reflectors and worker
policies    its policies file, and Events about a bad one
main        the command line
metrics     what is counted
"""
