"""Keeps the number in the context's state, which Flower hands to the next message."""

from flwr.app import ConfigRecord

from hostile.client_app import reply


def answer(secret, message, context):
    kept = context.state.config_records.get("kept")
    context.state["kept"] = ConfigRecord({"number": secret})
    return reply(message, float(kept["number"]) if kept else 0.0)
