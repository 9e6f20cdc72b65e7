"""The cluster controller: chooses GPUs for gated pods and creates their claims."""
