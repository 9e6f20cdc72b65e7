"""NCCL's topology files: read as machines, written from them, and checked against what NCCL accepts."""

from dradriver.topology.nccl.reader import read

__all__ = ["read"]
