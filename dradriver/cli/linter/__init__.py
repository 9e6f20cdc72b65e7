"""``gputopo lint``: manifests as the webhook would admit them.

* ``documents``: the objects of a YAML or JSON text, with their lines.
* ``templates``: the pods and claims that an object makes.
* ``admitted``: what the webhook's own code answers to them.
* ``patched``: a JSON Patch, applied.
"""
