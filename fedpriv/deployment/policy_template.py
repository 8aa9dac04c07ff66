"""What `fedpriv deploy node policy` prints: a policy.yaml to fill in."""

TEMPLATE = """\
# What this machine allows, whatever a server asks for. Unknown entries are refused.
counter: /var/lib/fedpriv/counter.json # outside the data folder, and in no backup together with it
budgets: # every release must keep to all of them, over everything that the data folder's ledger holds
  - {unit: client, delta: 1.0e-5, max_epsilon: 8.0, adjacency: replace-one, observer: server}
accountant: gaussian # for Gaussian noise alone. renyi: secure sums and all other mechanisms too (order: null, or one)
# Choose before the first message leaves. gaussian keeps to nine tenths of delta; later it can become renyi, once, with
# the tenth that is left.
strategies: [fedcad, fedldp]
variants: [repaired]
bundles: [] # SHA-256 of each approved app: python -m fedpriv.node bundle APP
schemas: [] # of tables, the digest of each approved schema: python -m fedpriv schema check schema_file=FILE
weights: [] # public weights, each {sha256, file, trained_on, max_size: 224}: docs/public_weights.md
limits:
  min_noise_multiplier: 1.0 # standard deviation / sensitivity: half of strategy.client.noise_multiplier
  max_round_epsilon: 4.0 # all attempts of a round together: twice one release survives a server's restart
  max_clip_norm: 10.0
  max_sampling_rate: 0.5
  max_batch_size: 256
  max_local_steps: 100
  max_rounds: 200
  max_messages: 10000 # in the ledger, over all runs
  max_parameters: 50000000
"""
