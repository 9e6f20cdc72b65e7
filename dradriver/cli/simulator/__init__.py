"""A simulated cluster that jobs come to and leave, under one policy or another."""
