"""The admission server: a pod's words and GPU limits become a gate and a claim's name, and bad words are refused.

A review of a pod goes down this list once: it is read, decided about, and answered by a patch.

    server        HTTP: requests in, within bounds, and answers out
    body          the body of a request; cuts off slow senders
    bytes_in_flight  shares the bytes of large bodies among the addresses that send them
    review        the form of an admission review's question and answer
    admission     which reviews are answered by what, counted
    pod_view      a pod as it is read: typed, only the fields that decisions are made from
    bounds        how much of each the pod may hold

    create        what a new pod should be
    translate     the same for a pod that has GPU limits and no word of ours, in namespaces labelled for it
    update        what a changed pod should be: what the driver wrote is carried over
    gpu_limits    reads the GPU limits of a pod's containers
    template_reference  finds the claim template that a pod refers to for its GPUs
    scheduler_placed  what the scheduler can follow by itself of a pod that it places alone
    addon         what a pod cannot have where another driver hands out the GPUs
    kueue         sees to it that Kueue charges what a pod will have
    gang          that a gang can be there as a whole
    pod_groups    which pods leave the PodGroup that the Job controller made for them
    harmful_settings  warns of variables and settings that spoil what the driver does
    effects       warns of annotations without effect
    desired       what a decision comes to: the fields that are the driver's, as they should be
    patch         the desired fields, written as a JSON Patch of what was sent

    workloads     Jobs, Deployments and others that make pods: their words go into the templates
    disruption    warns of a Job that fails where others' pods end its own
    validate      claims and templates with configurations for this driver, or of parts of GPUs

    certificates  says which certificates there should be
    certificate_keeper   keeps these in a Secret
    mounted_certificate  serves files of somebody else instead
    tls           the context that both load
    __main__      puts the process together
"""
