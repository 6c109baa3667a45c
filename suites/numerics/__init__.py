"""Numerics: does a recipe produce the numbers that its arithmetic should give?"""
