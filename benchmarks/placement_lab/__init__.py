"""What benchmarks/placement.py compares: a scenario of free platforms, simple policies, and lower bounds."""
