"""Training: does a recipe reach the loss of BF16?"""
