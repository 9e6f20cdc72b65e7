"""``gputopo serve``: the cluster as a page that stays up to date.

* ``login_session``: one login at the API server after another; it keeps the page up to date with the modules below.
* ``followed_objects``: the objects that the user may list, followed by watches, and handed out as lists to the same
  code that other commands run.
* ``live_cluster``: the cluster's scene, kept by changes of these objects.
* ``page_pieces``: the pieces of the page, which change independently: a tile for each node, the queue and other lists.
* ``page_documents``: the documents on health and on use by namespaces, from which two pieces are made.
* ``history``: the numbers of free and allocated GPUs and of waiting pods over the last day.
* ``feed``: the pieces that a reader has not received yet.
* ``page_details``: the details of a node or a pod that a reader opens.
* ``node_details``: the document on one node.
* ``guard``: refuses requests, by their Host header, their origin, and the page's key.
* ``page_server``: HTTP: the page, its files, the pieces, and events.
"""
