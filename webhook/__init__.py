"""The admission server: a pod's words and GPU limits become a gate and a claim's name, and bad words are refused.

A review of a pod goes down this list once: it is read, decided about, and answered by a patch.

    server        HTTP: bodies within bounds, answers; ``body`` cuts off slow senders, ``inflight`` shares the bytes
                  of large bodies among the addresses that send them
    admission     which reviews are answered by what, counted; ``review`` is the form of question and answer
    pod_view      a pod as it is read: typed, only the fields that decisions are made from
    bounds        how much of each the pod may hold
    create        what a new pod should be; ``containers`` reads its GPU limits, ``references`` its claims' templates,
                  ``static`` what the scheduler can follow by itself, ``advice`` warns of what spoils it, ``kueue``
                  sees to it that Kueue charges what a pod will have, ``gang`` that a gang can be there as a whole
    translate     the same for a pod that has GPU limits and no word of ours, in namespaces labelled for it
    update        what a changed pod should be: what the driver wrote is carried over
    addon         what a pod cannot have where another driver hands out the GPUs
    desired       what both come to: the fields that are the driver's, as they should be
    patch         that, written as a JSON Patch of what was sent
    workloads     Jobs, Deployments and others that make pods: their words go into the templates; ``disruption`` warns
                  of a Job that fails where others' pods end its own
    validate      claims and templates with configurations for this driver, or of parts of GPUs

Certificates: ``certificates`` says what they should be, ``keeper`` keeps that in a Secret, ``mounted`` serves files of
somebody else, ``tls`` is the context that both load. ``__main__`` puts the process together.
"""
