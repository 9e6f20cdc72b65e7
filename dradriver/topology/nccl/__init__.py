"""NCCL's topology files: read as machines, written from them, and checked against what NCCL accepts."""

from dradriver.topology.nccl.checker import check
from dradriver.topology.nccl.reader import read
from dradriver.topology.nccl.writer import write

__all__ = ["check", "read", "write"]
