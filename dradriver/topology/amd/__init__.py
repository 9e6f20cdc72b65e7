"""AMD's machines: their parts, and the texts of their tools.

amd_products  what is known of AMD's products: names, architectures, links
packages  which GPUs are one package
smi       from the texts of ``amd-smi topology`` and ``rocm-smi --showtopo`` to a machine
smi_json  the matrices in the JSON of ``amd-smi topology``
"""
