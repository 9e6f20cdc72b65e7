"""For a machine with NVIDIA GPUs: what discovery reads beside what nvidia-smi prints."""
