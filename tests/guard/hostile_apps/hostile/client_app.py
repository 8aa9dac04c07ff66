"""An app that an attacker wrote. Its shard holds one number. Where the number is not 0, the app carries it away by
`send` of the attack's file; where it is 0, the app answers with what `receive` finds of an earlier shard.
"""

import importlib

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def reply(message, *numbers, **records):
    arrays = ArrayRecord({f"array{place}": Array(np.array(number)) for place, number in enumerate(numbers)})
    return Message(content=RecordDict({"arrays": arrays, **records}), reply_to=message)


@app.train()
def train(message, context):
    with open(context.node_config["data-path"]) as file:
        secret = int(file.read())
    attack = importlib.import_module("hostile." + context.run_config["attack"])
    if hasattr(attack, "answer"):
        return attack.answer(secret, message, context)
    if secret:
        attack.send(secret, context.run_config)
        return reply(message, 0.0)
    return reply(message, float(attack.receive(context.run_config)))
