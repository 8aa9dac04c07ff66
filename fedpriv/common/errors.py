"""Errors that a user can act upon: they reach the command line as one line, without a traceback."""

from __future__ import annotations


class FedprivError(Exception):
    """Base of every error that the user can fix (exit code 2)."""


class OptionError(FedprivError):
    """A configuration option has a value that is not allowed.

    The message names the option as the user writes it, the value given, and what is allowed.
    """

    def __init__(self, option: str, value: object, allowed: str) -> None:
        self.option, self.value, self.allowed = option, value, allowed
        given = str(value)
        shown = f"{given[:500]}..." if len(given) > 500 else given
        super().__init__(f"{option}{f'={shown}' if shown else ''}: {allowed}")

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, object, str]]:
        return type(self), (self.option, self.value, self.allowed)


class OwnCodeError(OptionError):
    """Code of the user's gave something of another form in training: it may do so for some data alone."""


class WrongForm(RuntimeError):
    """What an app behind a mod answers is not of this model: by its code, whatever its data are."""


class DataError(FedprivError):
    """A data set is missing, broken, or not what its option says; names the file."""


class RunFolderError(FedprivError):
    """A run folder is empty, in use, incomplete, or belongs to another configuration."""


class CodeRefused(RunFolderError):
    """A run folder of somebody else's names code; nothing was imported."""


class RunFailed(FedprivError):
    """A run cannot continue (too few replies, every budget spent); results so far are kept."""


class ClusterLost(RunFailed):
    """The Ray cluster of a run is gone; its folder can be resumed."""


class PolicyRefused(FedprivError):
    """A node's policy does not allow what the server asks for; nothing was released."""


class LedgerRefused(FedprivError):
    """A data folder's ledger is missing, older than its counter, damaged, or in use; nothing may be released."""
