"""Reports of a run: pages, plots, tables, comparisons; and, while it runs, logs and metrics.

`fedpriv.report.page.write_report` writes the page of one run folder, `fedpriv.report.tables.final_table` is
what a run prints at its end, ``python -m fedpriv.report DIR...`` does either for existing folders.
"""
