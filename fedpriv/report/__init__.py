"""What a person reads of a run: its page, its pictures, its final table, and the comparison of several runs.

`fedpriv.report.page.write_report` writes the page of one run folder, `fedpriv.report.tables.final_table` is
what a run prints at its end, ``python -m fedpriv.report DIR...`` does either for folders that lie on the disk.
"""
