"""`fedpriv predict run=RUN_FOLDER PICTURE...`: classifies pictures with a finished run's model.

    run       the run's folder
    PICTURE   files in any format that Pillow reads; each is cropped and scaled as the training pictures were

Prints one line for each picture: file, class, probability. In Python: `fedpriv.load(RUN_FOLDER).model`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedpriv.common.command_line import DONE, command, path_of
from fedpriv.common.errors import OptionError
from fedpriv.common.places import use_own_methods
from fedpriv.common.printing import printable
from fedpriv.runs.trained_model import load_model


@command()
def main(arguments: Sequence[str]) -> int:
    use_own_methods()
    runs = [path_of(argument[4:]) for argument in arguments if argument.startswith("run=")]
    pictures = [argument for argument in arguments if not argument.startswith("run=")]
    if len(runs) != 1 or not pictures:
        raise OptionError("run", ",".join(runs), "usage: fedpriv predict run=RUN_FOLDER PICTURE...")
    model = load_model(runs[0])
    for path in pictures:
        likely, best = model.probabilities(model.read_picture(path)[None])[0].max(0)
        print(f"{printable(path)}\t{printable(model.classes[int(best)])}\t{float(likely):.4f}")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
