"""The container image: one list of contents, two ways to build it."""
