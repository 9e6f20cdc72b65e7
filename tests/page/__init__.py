"""The page of ``gputopo serve`` in a real Chromium."""
