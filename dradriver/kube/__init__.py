"""Talking to the API server: client, reflector, leader election."""
