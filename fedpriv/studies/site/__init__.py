"""The project's site: static pages made of what studies leave behind (`fedpriv.studies.results`).

``python -m fedpriv.site`` reads a folder of results (`sources`), makes the pages (`pages`, `run_pages`, `charts`,
`templates`) and puts them into a folder as a whole (`folder`). The pages load nothing from the network.
"""
