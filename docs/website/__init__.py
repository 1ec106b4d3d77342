"""Makes the documentation site: pages from the code, and links between them.

hooks.py      what mkdocs calls
pages.py      the Markdown of all pages
algorithm.py  the page of an algorithm
reading.py    what an algorithm's file says of itself
links.py      where a file of the repository is on the site
text.py       plain text as Markdown
site.css      what mkdocs-material's style lacks
"""
