"""Huawei's Ascend machines: what follows from their products, and the texts of ``npu-smi``.

ascend_products  how the chips of a product are linked, and which may be had together
npu_smi_matrix  the text of ``npu-smi info -t topo``
npu_smi_table  the text of ``npu-smi info``
"""
