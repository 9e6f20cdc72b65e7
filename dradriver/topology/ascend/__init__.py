"""Huawei's Ascend machines: what follows from their products, and the texts of ``npu-smi``.

rules   how the chips of a product are linked, and which may be had together
matrix  the text of ``npu-smi info -t topo``
table   the text of ``npu-smi info``
"""
