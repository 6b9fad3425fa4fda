"""The page for people: its files, the stream of changes that it shows, and the records it looks up.

`assets/` holds the page as browsers get it: HTML, one style sheet, JavaScript modules. There is no build step.
"""
