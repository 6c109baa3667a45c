"""Several ranks: does a recipe train when it is sharded, what goes over the wire, and how does it scale?"""
