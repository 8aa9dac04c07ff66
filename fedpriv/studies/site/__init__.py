"""The project's site: static pages made of what studies leave behind (`fedpriv.studies.results`).

``python -m fedpriv.site`` reads a folder of results (`inputs`), makes the pages (`pages`, `run_lists`, `run_pages`,
`charts`, `site_pictures`, `templates`) and puts them into a folder as a whole (`publishing`). The site is bounded:
`run_choice` says which runs have a page, every other one has a line in a list. The pages load nothing from the network.
"""
