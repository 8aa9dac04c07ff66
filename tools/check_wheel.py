"""The wheel `fedpriv-check`: the command `fedpriv check` of functions, without the rest of fedpriv.

    python -m tools.check_wheel [out=build/dist]

It holds the files that the command imports and nothing more, so it needs five packages; the target's own libraries may
be in another interpreter (`python=PATH`). It is a part of fedpriv under the same names: install one or the other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from fedpriv.common.command_line import command
from fedpriv.common.printing import say

ROOT = Path(__file__).parents[1]
#: What the command imports from elsewhere.
NEEDED = ("numpy", "scipy", "pydantic", "jinja2", "psutil")
#: Prints the files of fedpriv that a check needs, those that it imports late included.
IMPORTS = """
import sys
import fedpriv.commands.check, fedpriv.checking.opacus_loops, fedpriv.checking.lines, fedpriv.guard.kernel
print("\\n".join(one.__file__ for name, one in sys.modules.items() if name.partition(".")[0] == "fedpriv"))
"""

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedpriv-check"
version = "{version}"
description = "Checks of differentially private code: what it claims, what an audit measures, what has no noise"
readme = "README.md"
requires-python = ">=3.11"
license = "Apache-2.0"
dependencies = {needed}

[project.scripts]
fedpriv-check = "fedpriv.commands.check:console"

[tool.hatch.build.targets.wheel]
only-include = ["fedpriv"]
"""


def lay_out(folder: Path) -> list[str]:
    """Copies the files and their project into an empty folder; their names."""
    printed = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [Path(line).relative_to(ROOT) for line in printed.stdout.split()]
    pages = (ROOT / "fedpriv/report/pages").glob("*.md")
    with (ROOT / "pyproject.toml").open("rb") as stream:
        project = tomllib.load(stream)["project"]
    needed = [one for one in project["dependencies"] if one.startswith(NEEDED)]
    for name in [*files, *(page.relative_to(ROOT) for page in pages)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "pyproject.toml").write_text(PROJECT.format(version=project["version"], needed=needed))
    shutil.copy(ROOT / "docs/check.md", folder / "README.md")
    return [str(name) for name in files]


@command
def main(*, out: Path = ROOT / "build/dist") -> None:
    folder = ROOT / "build/fedpriv-check"
    shutil.rmtree(folder, ignore_errors=True)
    files = lay_out(folder)
    uv = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--no-build-isolation", "-o", str(out.resolve())]
    subprocess.run(uv, cwd=folder, check=True)
    say(f"{len(files)} files of fedpriv in {out}/fedpriv_check-*.whl")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
