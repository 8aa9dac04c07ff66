"""Replies with an error whose code is the number."""

from flwr.app import Error, Message


def answer(secret, message, context):
    return Message(Error(code=secret, reason=str(secret)), reply_to=message)
