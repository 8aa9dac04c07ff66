"""Sends the number as a metric and in a second kind of record."""

from flwr.app import ConfigRecord, MetricRecord

from hostile.client_app import reply


def answer(secret, message, context):
    return reply(message, 0.0, metrics=MetricRecord({"loss": secret}), config=ConfigRecord({"text": str(secret)}))
