"""AMD's machines: their products, and the texts of their tools.

amd_products  facts about AMD's products: names, architectures, links
packages  the GPUs that are one package
smi       converts the output of ``amd-smi topology`` and ``rocm-smi --showtopo`` to a machine
smi_json  the matrices in the JSON of ``amd-smi topology``
"""
