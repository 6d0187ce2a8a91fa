"""Read and edit launch files: shell scripts, JSON and YAML configs (DESIGN 3 and 4)."""
