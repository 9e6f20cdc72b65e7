"""Tools around, run beside the driver by whoever has their programs: for what docs/reference/compatibility.md says.

No part of ``make test``: their programs are not ours to build. What a tool does may change with its next version; then
the page changes with it.
"""
