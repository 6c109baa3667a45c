"""Throughput: is a recipe as fast as its golden says?"""
