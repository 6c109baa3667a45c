"""Several ranks: does a sharded recipe train, with which traffic and speed?"""
