"""Huawei's Ascend machines: links by product, and the texts of ``npu-smi``.

ascend_products  the links between the chips of a product, and which chips may be used together
npu_smi_matrix  converts the text of ``npu-smi info -t topo`` to a machine
npu_smi_table  converts the text of ``npu-smi info`` to a machine
"""
