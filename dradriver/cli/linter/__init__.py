"""``gputopo lint``: manifests as the webhook would admit them.

* ``manifest_documents``: the objects of a YAML or JSON text, with their lines.
* ``pod_templates``: the pods and claims that an object creates.
* ``inference_services``: the same for KServe's InferenceService, which has no pod template.
* ``admission_results``: the answers of the webhook's own code to these pods and claims.
* ``patched``: applies a JSON Patch.
"""
