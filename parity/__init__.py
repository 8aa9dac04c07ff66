"""The same jobs by fedpriv and by its peers, in an environment of their own. `make parity` runs all of it.

`jobs` names them, `rule` says when two programs agree, `__main__` runs both sides and writes results.json and
the table of docs/parity.md. Modules `by_NAME` run one peer each and import nothing of fedpriv.
"""
