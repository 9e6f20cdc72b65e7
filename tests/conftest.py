"""What holds for every test."""

from __future__ import annotations

import asyncio
import os

from hypothesis import settings

# A loaded machine is no failure, and CI tries the same examples every time.
settings.register_profile("steady", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("steady")

# Else pytest-asyncio asks for a default event loop before its first test, which nobody closes.
asyncio.set_event_loop(None)
