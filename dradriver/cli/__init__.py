"""gputopo, also as kubectl gputopo."""
