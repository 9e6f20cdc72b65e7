"""The admission server: turns a pod's annotations and GPU limits into a scheduling gate and a claim, or refuses them.

A review of a pod passes these modules once, from top to bottom: it is read, decided, and answered with a patch.

    server        HTTP server: receives requests, within bounds, and sends answers
    body          the body of a request; ends requests of slow senders
    bytes_in_flight  shares the bytes of large bodies among the addresses that send them
    review        the format of an admission review's question and answer
    admission     which function answers which review, with metrics
    pod_view      a pod as it is read: typed, only the fields that the webhook uses
    bounds        the largest size of each part of a pod

    create        the desired fields of a new pod
    translate     the same for a pod with only GPU limits, in namespaces with a label for it
    update        the desired fields of a changed pod: keeps the fields that the driver wrote
    gpu_limits    reads the GPU limits of a pod's containers
    template_reference  finds the claim template that a pod refers to for its GPUs
    scheduler_placed  which annotations the scheduler can follow for a pod that only it places
    addon         what a pod cannot request if another driver allocates the GPUs
    kueue         ensures that Kueue charges the GPUs that a pod will have
    gang          refuses gangs whose pods can never all exist at the same time
    pod_groups    which pods leave the PodGroup that the Job controller created for them
    harmful_settings  warns of variables and settings that undo the driver's work
    effects       warns of annotations without effect
    desired       the result of a decision: the desired values of the driver's fields
    patch         writes the desired fields as a JSON Patch of the sent pod

    workloads     Jobs, Deployments and others that create pods: copies their annotations into the pod templates
    disruption    warns about a gang's Job that one eviction of its pods can fail
    validate      checks claims and templates with configurations for this driver, or for fractions of GPUs
    stored_policies  refuses an invalid policies file before it is stored

    certificates  decides which certificates there should be
    certificate_keeper   keeps these in a Secret
    mounted_certificate  serves certificate files that another program renews
    tls           the TLS context that both load certificates into
    __main__      starts the process
"""
