"""Transformer Engine's FusedAdam without a GPU, and the master weights that it keeps."""
