"""The admission server: annotations into claims, and validation."""
