"""What is nowhere in the code: evaluation, pickle, loaders that run what they read. Read with ast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tools.floors import imported, sources, under

MODULES = ("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "code", "codeop")
BUILTINS = ("eval", "exec", "compile", "__import__")
#: Calls by the end of their dotted name that are safe with this argument alone.
ONLY_WITH = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}
LOADERS = (
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"),
    *("torch.jit.load", "os.system", "os.popen"),
)
#: Ray pickles whatever its processes exchange, which are one user's own; a deployment has none.
RAY_ENGINE = ("fedpriv.engines.ray", "fedpriv.engines.ray_pool")


def faults(text: str, module: str) -> Iterator[str]:
    """Forbidden imports and calls of one file."""
    modules = () if module in RAY_ENGINE else MODULES
    yield from (f"{module} imports {name}" for name in imported(text, module) if under(name, *modules))
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {word.arg: word.value for word in node.keywords}
        if called.removeprefix("builtins.") in BUILTINS or called in LOADERS:
            yield f"{module}:{node.lineno} calls {called}"
        if called in ONLY_WITH:
            name, value = ONLY_WITH[called]
            found = given.get(name)
            if not (isinstance(found, ast.Constant) and found.value is value):
                yield f"{module}:{node.lineno} calls {called} without {name}={value}"
        shell = given.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield f"{module}:{node.lineno} calls {called} with a shell"
        if any(isinstance(word, ast.Constant) and word.value is True for word in [given.get("allow_pickle")]):
            yield f"{module}:{node.lineno} calls {called} with allow_pickle"


def test_nothing_is_evaluated_and_no_loader_runs_code() -> None:
    files = sorted(sources().items())
    assert len(files) > 100
    assert [fault for module, file in files for fault in faults(file.read_text(), module)] == []


#: Modules that read messages; what of them touches files or modules must not come from one.
READERS = (
    "fedpriv.common.messages",
    "fedpriv.app",
    "fedpriv.engines.worker",
    "fedpriv.client.base",
    "fedpriv.client.one_path",
    "fedpriv.client.contract",
    "fedpriv.client.method",
    "fedpriv.client.gaussian",
    "fedpriv.client.one_bit",
    "fedpriv.common.identities",
)
FILES = ("open", "Path", "write_atomic", "mkdir", "unlink", "rmtree", "import_module", "locate", "getattr")


def test_clients_open_no_file_and_readers_none_but_their_own_machines() -> None:
    """Of all code that sees a message, only these calls have to do with files or names of code. Their arguments: the
    node's own configuration (identity files, named by its operator) and a number in its file's name.
    """
    found = set()
    for module, file in sources().items():
        if module.startswith("clients.") or module in READERS:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in FILES:
                    found.add(f"{module}: {ast.unparse(node)}")
    assert found == {
        "fedpriv.common.identities: Path(str(path))",  # of context.node_config
        "fedpriv.client.method: getattr(self, 'clip_norm', 1.0)",
        "fedpriv.client.one_bit: getattr(self.options, 'epsilon', None)",
    }


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "def f():\n    from cloudpickle import loads",
        "eval('1')",
        "builtins.exec(text)",
        "yaml.load(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.lib.format.read_array(file, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_a_fault_is_seen(text: str) -> None:
    assert list(faults(text, "fedpriv.x"))


@pytest.mark.parametrize("text", ["yaml.safe_load(text)", "torch.load(path, weights_only=True)", "re.compile('a')"])
def test_what_is_safe_is_not(text: str) -> None:
    assert not list(faults(text, "fedpriv.x"))
