"""``gputopo serve``: the cluster as a page that stays up to date.

* ``followed_objects``: what the API server lets its user list, followed by watches, and handed out as lists to the
  same code that other commands run.
* ``live_cluster``: the cluster's scene, kept by changes.
* ``page_pieces``: what the page is told, in pieces that change alone.
* ``page_documents``: what it shows of health and use, for people.
* ``feed``: which of the pieces a reader has not seen.
* ``page_details``: what is shown of one node or one pod when somebody opens it.
* ``guard``: who may ask: the Host, where a request comes from, the page's key.
* ``page_server``: HTTP: the page, its files, the pieces, and events.
* ``login_session``: one login at the API server after another.
"""
