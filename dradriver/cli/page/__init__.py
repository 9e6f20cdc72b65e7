"""``gputopo serve``: the cluster as a page that stays up to date.

* ``login_session``: one login at the API server after another; it keeps the page up to date by the next modules.
* ``followed_objects``: the objects that the user may list, followed by watches, and handed out as lists to the same
  code that other commands run.
* ``live_cluster``: the cluster's scene, kept by changes of these objects.
* ``page_pieces``: what the page shows, in pieces that change alone: a tile for each node, the queue and other lists.
* ``page_documents``: the documents on health and on use by namespaces, from which two pieces are made.
* ``history``: free, held and waiting over the last day.
* ``feed``: which of the pieces a reader has not seen.
* ``page_details``: what is shown of one node or one pod when somebody opens it.
* ``node_details``: the document on one node.
* ``guard``: which requests are refused: by the Host, where a request comes from, the page's key.
* ``page_server``: HTTP: the page, its files, the pieces, and events.
"""
