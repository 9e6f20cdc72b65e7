"""Draws everything that ``gputopo`` shows: a document's model; renderers for text, SVG and HTML.

* ``document``: the model: a titled document of sections with tables, a matrix, bars, a key, notes.
* ``text``: renders a document as text for a terminal or a pipe. Only this module aligns columns.
* ``svg``: renders a document's pictures. ``matrix`` draws a link matrix, ``switch`` a machine in which one switch joins
  all GPUs, ``bars`` draws bars; ``svg_elements`` has elements that all of them use.
* ``html``: renders a document as an HTML page.
* ``page``: the files of ``gputopo serve``'s page.
* ``palette``: all colours, for terminals and for light and dark pages.
* ``terminal_text``: makes foreign text safe for a terminal, and measures its width there.
* ``output``: prints a command's output in the requested format, and warnings.
"""
