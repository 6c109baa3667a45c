"""Divide the time of a step or block by its kernels, and time each linear alone."""
