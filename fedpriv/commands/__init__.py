"""The commands of `fedpriv`, one file each: they read options, call a package below and print.

`table` lists them. `python -m fedpriv.audit` is `fedpriv audit`.
"""
