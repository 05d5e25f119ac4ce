"""What Sphinx has to know to make the site of the documentation; ``build.py`` beside this file calls it."""

project = "AMQP gateway"
extensions = ["myst_parser"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.xref_missing"
]  # places marked with <a id>, which it does not know; build.py checks each link
html_theme = "furo"
html_title = "AMQP gateway"
html_show_sphinx = False
html_copy_source = False
