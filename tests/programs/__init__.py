"""NVIDIA's own programs, run in the layout that the chart gives them on a host with the tests' driver."""
