"""What holds for every test."""

from __future__ import annotations

import asyncio

# Else pytest-asyncio asks for a default event loop before its first test, which nobody closes.
asyncio.set_event_loop(None)
