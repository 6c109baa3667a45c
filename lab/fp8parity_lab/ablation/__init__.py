"""Which place of a recipe costs the gap."""
