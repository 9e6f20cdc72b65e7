"""How everything that ``gputopo`` shows is drawn: one model of what is shown, and a renderer each for text, SVG, HTML.

* ``document``: the model: a titled document of sections of tables, a matrix, bars, a key, notes.
* ``text``: renders a document as text for a terminal or a pipe; the one place that aligns columns.
* ``svg``: renders a document's pictures. ``matrix`` draws a link matrix, ``switch`` one whose cells are all alike,
  ``bars`` draws bars; ``svg_elements`` has what they share.
* ``html``: renders a document as a page of its own.
* ``page``: the files of ``gputopo serve``'s page.
* ``palette``: all colours, for terminals and for light and dark pages.
* ``terminal_text``: text of others made safe for a terminal, and how wide it is there.
* ``output``: prints what a command has to show in the format that is asked for, and warnings.
"""
