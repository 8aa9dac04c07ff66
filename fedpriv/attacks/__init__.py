"""Membership inference: who was in the training data of a finished run?"""
