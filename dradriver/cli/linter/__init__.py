"""``gputopo lint``: manifests as the webhook would admit them.

* ``manifest_documents``: the objects of a YAML or JSON text, with their lines.
* ``pod_templates``: the pods and claims that an object makes.
* ``inference_services``: the same for KServe's InferenceService, which has no pod template.
* ``admission_results``: what the webhook's own code answers to them.
* ``patched``: a JSON Patch, applied.
"""
