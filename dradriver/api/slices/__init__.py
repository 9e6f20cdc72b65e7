"""ResourceSlices.

resource_slices    builds ResourceSlices from a machine, and reads the machine from them
device_attributes  a GPU as devices, whole or in shares, with their attributes
mig_devices        devices of a GPU with MIG instances
slice_features     which fields of slices the API server keeps
lost_gpus          GPUs that a node lost
"""
