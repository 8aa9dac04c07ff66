"""Central privacy for whoever replies in a round."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

CLAIM = {"epsilon": 4.4, "delta": 1e-5, "scope": "call", "adjacency": "add-or-remove-one", "unit": "client"}


class Whoever(FedAvg):
    start = None

    def configure_train(self, server_round, arrays, config, grid):
        self.start = {name: arrays[name].numpy() for name in arrays}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        moves = []
        for reply in replies:
            if reply.has_error():
                continue
            record = next(iter(reply.content.array_records.values()))
            move = {name: np.nan_to_num(record[name].numpy() - old) for name, old in self.start.items()}
            size = np.sqrt(sum(np.square(part, dtype=np.float64).sum() for part in move.values()))
            moves.append({name: part / max(1.0, size) for name, part in move.items()})
        if not moves:
            return None, None
        merged = {}
        for name, old in self.start.items():
            total = np.sum([move[name] for move in moves], axis=0, dtype=np.float64)
            step = (total + np.random.normal(0.0, 1.0, size=np.shape(total))) / len(moves)
            merged[name] = Array(np.asarray(old + step))
        return ArrayRecord(merged), None


target = Whoever(fraction_evaluate=0.0)
