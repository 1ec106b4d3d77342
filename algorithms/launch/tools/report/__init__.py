"""The page that a sweep leaves: report.html, one file that opens offline.

page           the page, section by section
study          the settings of one environment, their scores and the axes of their fields
answers        what won, by how much, whether seeds explain it, where to look next
importance     which setting mattered
chance         what more random settings, or other seeds, would have brought
table          the ranking with its intervals
curves         learning curves of the best settings
landscapes     scores over one setting, over two, and over all of them
svg            scales, axes and marks

page.css and page.js are put into the page as they are.
"""
