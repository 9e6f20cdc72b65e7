"""ResourceSlices.

resource_slices    a machine as ResourceSlices, and back
device_attributes  a GPU as devices, whole or in shares, with their attributes
mig_devices        devices of a GPU whose MIG instances are made on demand
slice_features     which fields of slices the API server keeps
lost_gpus          GPUs that a node lost
"""
