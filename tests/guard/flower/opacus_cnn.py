"""After Flower's opacus example: quickstart-pytorch's network, trained by Opacus' `PrivacyEngine` on the client."""

import warnings

import torch
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from opacus import PrivacyEngine
from pytorch_cnn import load_data, main, optimise, received, reply

app, server = ClientApp(), ServerApp()
server.main()(main)
warnings.filterwarnings("ignore", category=UserWarning)


@app.train()
def train(msg, context):
    net, (loader, _) = received(msg), load_data(context)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    engine = PrivacyEngine(secure_mode=False)
    private, optimizer, loader = engine.make_private(
        module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    optimise(private, optimizer, loader)
    return reply(
        msg, private._module.state_dict(), epsilon=engine.get_epsilon(1e-5), **{"num-examples": len(loader.dataset)}
    )
