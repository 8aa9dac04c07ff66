"""Fails with the number in the text."""


def answer(secret, message, context):
    raise ValueError(f"row {secret}")
