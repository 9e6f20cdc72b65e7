"""AMD's machines: their parts, and the texts of their tools.

amd_products  what is known of a part by its PCI device id
packages  which GPUs are one package
smi       the texts of ``amd-smi topology`` and ``rocm-smi --showtopo``
smi_json  the JSON of ``amd-smi topology``
"""
