"""`fedpriv ask QUESTION... option=value ...`: statistics of the rows at sites, by one private sum.

    fedpriv ask count mean:age histogram:sex dataset=table dataset.root=FILE dataset.schema_file=FILE num_clients=3
        privacy.target_epsilon=1

A question is a kind and a column of the schema:

    count, count:COLUMN:VALUE            how many rows (persons)
    sum:COLUMN, mean:COLUMN, variance:COLUMN
    histogram:COLUMN, histogram:COLUMN:BINS
    quantiles:COLUMN:0.25:0.5:0.75
    covariance:COLUMN:COLUMN...
    table:COLUMN:COLUMN...               how many of each combination of categories
    top:COLUMN:HOW_MANY                  the most frequent categories
    linear:TARGET:COLUMN...              a regression; or logistic, poisson
    hazards:TIME:EVENT:COLUMN...         hazard ratios; COLUMN...:END:INTERVALS if wanted
    heterogeneity:GROUP:linear:...       how much a regression's coefficients differ between groups
    survival:TIME:EVENT:GROUP            Kaplan-Meier curves and the log-rank test; GROUP:END:INTERVALS if wanted
    score:RUN:THRESHOLD                  how well a finished run's model does (docs/scores.md); THRESHOLD:BINS if wanted

Quantiles, logistic, poisson and hazards are asked in two rounds (num_rounds=2), the second near what the first found.
A question with spaces stands in quotation marks. The options are those of a run with strategy=ask (`fedpriv help ask`);
all sites that are asked must answer (strategy.server.min_replies=${clients_per_round}) and the noise is the operating
system's (privacy.rng=secure), unless an option says otherwise. `plan=true` shows the cost and asks nothing.
docs/statistics.md has the kinds and what an answer's error is.
"""

from __future__ import annotations

import sys

from fedpriv.commands import runs
from fedpriv.common.command_line import command
from fedpriv.config.question_words import ask_options


@command
def main(*overrides: str) -> int:
    return runs.main(ask_options(overrides))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
