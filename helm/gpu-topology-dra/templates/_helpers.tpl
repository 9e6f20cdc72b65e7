{{/* The driver's name, which is also its DeviceClass and the prefix of its annotations: dradriver/api/base/names.py. */}}
{{- define "driver" -}}gpu.topology{{- end }}

{{/* The name of a part's objects, in the cluster too: there is one driver in a cluster. Arguments: root, part. */}}
{{- define "name" -}}
{{- $root := index . 0 -}}
{{- printf "%s-%s" ($root.Values.fullnameOverride | default $root.Release.Name | trunc 40 | trimSuffix "-") (index . 1) -}}
{{- end }}

{{/* What selects a part's pods; never changes between versions. */}}
{{- define "selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Values.nameOverride | default $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/*
Our annotations of pods without their prefix, all in dradriver/api/base/names.py, as CEL. Policies compare these and look at no
others: over an object with forty thousand annotations an API server would compute for seconds.
*/}}
{{- define "words" -}}
['policy', 'required', 'preferred', 'require-nvlink', 'gpus', 'strategy', 'min-bandwidth', 'min-busbw', 'product',
'architecture', 'min-memory', 'min-driver', 'min-cuda', 'vendor', 'max-cross-nvswitch-gpus', 'prefer-same-numa',
'near-nic', 'share',
'memory', 'cores', 'mig-profile', 'nccl', 'workload', 'claim', 'placement', 'when-full', 'spot',
'shared-claim', 'max-duration', 'gang', 'gang-size', 'multi-node-policy', 'max-nodes', 'min-gpus-per-node', 'min-network-bandwidth', 'near',
'on-member-loss', 'idle-timeout', 'request', 'affinity', 'template', 'pod-group', 'allocated', 'ring-order', 'bandwidth', 'busbw',
'level', 'fallback', 'part', 'rank-hint', 'gang-nodes', 'gang-reach', 'gang-busbw', 'reason',
'idle-end', 'node', 'score']
{{- end }}

{{/* NVSentinel's annotation if the controller writes it, else nothing: dradriver/api/base/names.py. */}}
{{- define "nvsentinelDevices" -}}{{ if (.Values.nvsentinel).annotatePods }}dgxc.nvidia.com/devices{{ end }}{{- end }}

{{/* Vendors whose classes are their own, with the extended resource that their GPUs are: dradriver/topology/vendors.py. */}}
{{- define "otherVendors" -}}
amd: amd.com/gpu
ascend: huawei.com/npu
{{- end }}

{{/* DeviceClasses of NICs by the names that the drivers' own manifests give them, as JSON: dradriver/api/vocabulary/nic_requests.py. */}}
{{- define "nicClasses" -}}
["dranet", "dra.net", "dranet.net", "efa.networking.k8s.aws", "sriovnetwork.k8snetworkplumbingwg.io"]
{{- end }}

{{/* Limits of pods that ask for GPUs, as a regular expression: dradriver/api/vocabulary/container_limits.py. */}}
{{- define "gpuLimits" -}}nvidia[.]com/(v?gpu|mig-)|aliyun[.]com/gpu-|amd[.]com/gpu|huawei[.]com/(Ascend|npu){{- end }}

{{/* The slice of the seats of gangs, its pool and their DeviceClass: dradriver/api/base/gang_barrier_device.py. */}}
{{- define "seatSlice" -}}gang-seats-{{ include "driver" . }}{{- end }}
{{- define "seatPool" -}}gang/seats{{- end }}

{{/*
What makes the pods of gangs, by kind: dradriver/api/gangs/gang_size_of_owner.py. read: whether the controller reads it where the values do
not say. suspend: where it is stopped; pods where there is no such field, and its pods are deleted instead.
*/}}
{{- define "gangOwners" -}}
Job: {group: batch, resource: jobs, read: true, suspend: spec}
StatefulSet: {group: apps, resource: statefulsets, read: true, suspend: pods}
PodGroup: {group: scheduling.k8s.io, resource: podgroups, read: true}
JobSet: {group: jobset.x-k8s.io, resource: jobsets, read: true, suspend: spec}
LeaderWorkerSet: {group: leaderworkerset.x-k8s.io, resource: leaderworkersets, read: true, suspend: pods}
PyTorchJob: {group: kubeflow.org, resource: pytorchjobs, read: true, suspend: runPolicy}
TFJob: {group: kubeflow.org, resource: tfjobs, read: true, suspend: runPolicy}
XGBoostJob: {group: kubeflow.org, resource: xgboostjobs, read: true, suspend: runPolicy}
JAXJob: {group: kubeflow.org, resource: jaxjobs, read: true, suspend: runPolicy}
PaddleJob: {group: kubeflow.org, resource: paddlejobs, read: true, suspend: runPolicy}
MPIJob: {group: kubeflow.org, resource: mpijobs, read: true, suspend: runPolicy}
TrainJob: {group: trainer.kubeflow.org, resource: trainjobs, suspend: spec}
{{- end }}

{{/* What the controller may do with them, as JSON: by kind group, resource, verbs, and where it stops them (suspend). */}}
{{- define "gangRights" -}}
{{- $wanted := .Values.controller.gangOwners | default dict -}}
{{- $rights := dict -}}
{{- range $kind, $known := fromYaml (include "gangOwners" .) -}}
{{- $said := get $wanted $kind | default dict -}}
{{- $read := ternary $said.read $known.read (hasKey $said "read") -}}
{{- $right := dict "group" $known.group "resource" $known.resource "verbs" (list "get") "suspend" "" -}}
{{- if $said.suspend -}}
{{- $right = set $right "suspend" $known.suspend -}}
{{- if ne $known.suspend "pods" -}}{{- $right = set $right "verbs" (list "get" "list" "patch") -}}{{- end -}}
{{- end -}}
{{- if or $read $said.suspend -}}{{- $rights = set $rights $kind $right -}}{{- end -}}
{{- end -}}
{{- toJson $rights -}}
{{- end }}

{{- define "labels" -}}
{{- $root := index . 0 -}}
{{ include "selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: gpu-topology
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What a part's pods carry beside a name. Arguments: root, part, the part's values. */}}
{{- define "podMetadata" -}}
{{- $values := index . 2 -}}
labels:
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- include "labels" . | nindent 2 }}
{{- with $values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The user name of a part's service account. */}}
{{- define "user" -}}
{{- $root := index . 0 -}}
{{- printf "system:serviceaccount:%s:%s" $root.Release.Namespace (include "name" .) -}}
{{- end }}

{{/* How the webhook comes by its certificates: mounted where somebody else puts them into a secret. */}}
{{- define "mountedCertificates" -}}
{{- if ne .Values.webhook.certificates.mode "selfManaged" }}true{{ end -}}
{{- end }}

{{/* Annotations of the webhook configurations; cert-manager writes the CA into those that say where it is. */}}
{{- define "configurationAnnotations" -}}
{{- $said := .Values.webhook.configurationAnnotations | default dict -}}
{{- if eq .Values.webhook.certificates.mode "certManager" -}}
{{- $from := printf "%s/%s" .Release.Namespace (include "name" (list . "webhook")) -}}
{{- $said = merge (dict "cert-manager.io/inject-ca-from" $from) $said -}}
{{- end -}}
{{- with $said }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "webhookSecret" -}}
{{ .Values.webhook.certificates.secretName | default (include "name" (list . "webhook-certificate")) }}
{{- end }}

{{/* "true" where the devices are this driver's own, empty where it is an add-on to another. */}}
{{- define "own" -}}
{{- if eq (.Values.allocatingDriver | default (include "driver" .)) (include "driver" .) }}true{{ end -}}
{{- end }}

{{/*
The Pod Security Standard that the release's namespace enforces, if it forbids privileged containers; else empty. helm template,
and an installation that creates the namespace, see no label.
*/}}
{{- define "podSecurity" -}}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace -}}
{{- $level := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" $namespace -}}
{{- if has $level (list "baseline" "restricted") }}{{ $level }}{{ end -}}
{{- end }}

{{/* "true" on OpenShift, else empty. */}}
{{- define "openshift" -}}
{{- $enabled := dig "enabled" "auto" (.Values.openshift | default dict) -}}
{{- if eq (toString $enabled) "auto" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}true{{ end -}}
{{- else if $enabled }}true{{ end -}}
{{- end }}

{{/* Nobody's user and group; on OpenShift it gives each namespace its own, and refuses others. Arguments: root, part. */}}
{{- define "nobody" -}}
runAsNonRoot: true
{{- if not (include "openshift" (index . 0)) }}
runAsUser: 65532
runAsGroup: 65532
{{- if eq (index . 1) "webhook" }}
fsGroup: 65532
{{- end }}
{{- end }}
{{- end }}

{{/* The start of a part's pod: what all parts have in common. Arguments: root, part, the part's values. */}}
{{- define "podStart" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $values := index . 2 -}}
serviceAccountName: {{ include "name" (list $root $part) }}
automountServiceAccountToken: {{ not (or (eq $part "mps") (and (eq $part "webhook") (include "mountedCertificates" $root))) }}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- /* MPS serves what the agent hands out, so it is where the agent is, unless its own values say otherwise. */}}
{{- $selector := $values.nodeSelector }}
{{- $affinity := $values.affinity }}
{{- if eq $part "mps" }}
{{- $selector = $values.nodeSelector | default $root.Values.node.nodeSelector }}
{{- $affinity = $values.affinity | default $root.Values.node.affinity }}
{{- end }}
{{- with $selector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $affinity }}
affinity: {{- toYaml $affinity | nindent 2 }}
{{- else if and (not $selector) (has $part (list "node" "mps")) (ne $root.Values.discovery "simulated") }}
{{- with $root.Values.node.gpuLabels }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- range . }}
        {{- $label := regexSplit "=" . 2 }}
        - matchExpressions:
            {{- if eq (len $label) 2 }}
            - {key: {{ index $label 0 | quote }}, operator: In, values: [{{ index $label 1 | quote }}]}
            {{- else }}
            - {key: {{ index $label 0 | quote }}, operator: Exists}
            {{- end }}
        {{- end }}
{{- end }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The environment of every container. */}}
{{- define "environment" -}}
- {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
{{- end }}

{{- define "logArguments" -}}
- --log-format={{ .Values.logFormat }}
{{- if .Values.verbose }}
- -v
{{- end }}
{{- end }}

{{/* The policies file in every part's pod: a folder, for the kubelet changes no file that is mounted by itself. */}}
{{- define "policiesVolume" -}}
- name: policies
  configMap:
    name: {{ include "name" (list . "policies") }}
{{- end }}

{{/*
Probes of a process with /healthz and /readyz on the port called health. Argument: after how many failures in a row,
2 seconds apart, the pod is not ready any more.
*/}}
{{- define "probes" -}}
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ . }}
livenessProbe:
  httpGet: {path: /healthz, port: health}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/*
Replicas of a Deployment on different nodes and in different zones where there are such, those of one revision counted
together. Arguments: root, part, the part's values.
*/}}
{{- define "spread" -}}
{{- $me := . -}}
topologySpreadConstraints:
{{- with (index . 2).topologySpreadConstraints }}
{{- toYaml . | nindent 2 }}
{{- else }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels: {{- include "selectorLabels" $me | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{/*
Whether annotations have words of ours, as CEL. Their text is searched, for a loop in CEL takes time by the square: over
36,000 annotations, which any tenant may send, 4.7 s of an API server, and the text a fraction of one (Kubernetes 1.36.3).
It is {"key": "value", "key": "value"} with every quote inside escaped, so that a start of a word behind {" or , " is a
key's; a server that writes it in another way is asked for the words anywhere, and more pods are looked at than need be.
A pattern, or starts of more than ten letters, would cost more than CEL may spend on the longest text that there can be.
*/}}
{{- define "hasOurWords" -}}
["%s".format([object.metadata.?annotations.orValue({})])].exists(text, text.startsWith('{"') ?
['{"gpu.topo', ', "gpu.top', '{"gpu-topo', ', "gpu-top'].exists(start, text.contains(start)) :
text.contains("gpu.topology/") || text.contains("gpu-topology.example.com/"))
{{- end }}

{{/*
Whether an update changes what is the driver's on a pod, as CEL: our annotations, our label, our gate, or the names of its
claims. It looks at no annotation or label but ours. The API server adds no gate in an update.
*/}}
{{- define "changesOurs" -}}
{{- $mark := printf "%s/placement" (include "driver" .) | squote -}}
['{{ include "driver" . }}/', 'gpu-topology.example.com/'].exists(prefix,
{{ include "words" . }}.exists(word,
object.metadata.?annotations[?prefix + word] != oldObject.metadata.?annotations[?prefix + word])) ||
{{- with include "nvsentinelDevices" . }}
object.metadata.?annotations[?{{ squote . }}] != oldObject.metadata.?annotations[?{{ squote . }}] ||
{{- end }}
object.metadata.?labels[?{{ $mark }}] != oldObject.metadata.?labels[?{{ $mark }}] ||
{'name': {{ $mark }}} in oldObject.spec.?schedulingGates.orValue([]) &&
!({'name': {{ $mark }}} in object.spec.?schedulingGates.orValue([])) ||
object.spec.?resourceClaims != oldObject.spec.?resourceClaims
{{- end }}

{{/* A match condition: the controller may do as it decided, even while no webhook answers. */}}
{{- define "notByController" -}}
- name: not-by-controller
  expression: request.userInfo.username != {{ include "user" (list . "controller") | squote }}
{{- end }}

{{/* A match condition. The controller chose the devices of a claim that it pinned. The scheduler chooses those of a claim that
the controller hands over, so such a claim is looked at. */}}
{{- define "notPinned" -}}
- name: not-pinned-by-controller
  expression: >-
    request.userInfo.username != {{ include "user" (list . "controller") | squote }} ||
    object.metadata.?labels["gpu.topology/placement"].orValue("") != "placed"
{{- end }}

{{/*
Namespaces in which the controller's account never writes, as JSON, which is CEL, too. Those that the values exclude are not
among them: the webhook looks at no new pod there, but pods that waited before must still get their claims.
*/}}
{{- define "systemNamespaces" -}}
{{- list "kube-system" .Release.Namespace | uniq | toJson -}}
{{- end }}

{{/* Namespaces whose objects the webhook does not look at, and in which the controller evicts no pod, as JSON. */}}
{{- define "exemptNamespaces" -}}
{{- concat (include "systemNamespaces" . | fromJsonArray) (.Values.webhook.excludedNamespaces | default list) | uniq | toJson -}}
{{- end }}

{{/* A match condition: a policy that bounds what the controller's account may do. */}}
{{- define "byController" -}}
- name: controller
  expression: request.userInfo.username == {{ include "user" (list . "controller") | squote }}
{{- end }}

{{/* A validation: the controller writes nothing in the system namespaces. Argument: root. */}}
{{- define "notSystem" -}}
- expression: "!(request.namespace in {{ include "systemNamespaces" . | replace "\"" "'" }})"
  reason: Forbidden
  message: The controller must not write in the namespaces {{ include "systemNamespaces" . | fromJsonArray | join ", " }}.
{{- end }}

{{/*
Variables for a policy. The last is the new and the old object's annotations, or labels, without those of the driver, as
text. The text of a map is {"key": "value", "key": "value"}, sorted by keys, with every quote inside escaped. So the driver's
entries stand together, and what is before the first and behind the last of them is compared. A loop over the map in CEL
would take time by the square of the entries. Each variable may cost as much as an expression, so there are several of them.
An entry under another tool's name stands elsewhere. Its own text, made in the same way, is taken out of the whole text.
Arguments: annotations or labels, and the name of one more annotation of the driver, or nothing.
*/}}
{{- define "others" -}}
{{- $what := index . 0 -}}
- name: {{ $what }}Text
  expression: >-
    [object, oldObject].filter(entity, entity != null).map(entity, "%s".format([entity.metadata.?{{ $what }}.orValue({})]))
{{- with index . 1 }}
{{- $value := printf "entity.metadata.?%s[?%s]" $what (squote .) }}
- name: {{ $what }}Bridge
  expression: >-
    [object, oldObject].filter(entity, entity != null).map(entity, [{{ $value }}.hasValue() ?
    ", " + "%s".format([{ {{- squote . }}: {{ $value }}.value()}]).substring(1) : "}"].map(text,
    text.substring(0, size(text) - 1))[0])
{{- end }}
- name: {{ $what }}Entries
  expression: >-
    {{ if index . 1 }}[0, size(variables.{{ $what }}Text) - 1].map(i, [variables.{{ $what }}Text[i]].map(text,
    (text == "{}" ? "}" : ", " + text.substring(1)).replace(variables.{{ $what }}Bridge[i], ""))[0])
    {{- else }}variables.{{ $what }}Text.map(text, text == "{}" ? "}" : ", " + text.substring(1)){{ end }}
- name: {{ $what }}Pieces
  expression: variables.{{ $what }}Entries.map(entries, entries.split(', "gpu.topology/'))
- name: {{ $what }}End
  expression: >-
    variables.{{ $what }}Pieces.map(pieces, size(pieces) == 1 ? -2 : pieces[size(pieces) - 1].indexOf('", "'))
- name: others{{ title $what }}
  expression: >-
    [0, size(variables.{{ $what }}Pieces) - 1].map(i, [variables.{{ $what }}Pieces[i]].map(pieces, pieces[0] +
    (variables.{{ $what }}End[i] == -2 ? "" : variables.{{ $what }}End[i] == -1 ? "}" :
    pieces[size(pieces) - 1].substring(variables.{{ $what }}End[i] + 1)))[0])
{{- end }}

{{/* What the webhooks of users' objects have in common. Arguments: root, path, and where not in all namespaces one more expression. */}}
{{- define "webhookCommon" -}}
{{- $root := index . 0 -}}
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: {{- include "exemptNamespaces" $root | fromJsonArray | toYaml | nindent 8 }}
    {{- if gt (len .) 2 }}
    - {{ index . 2 }}
    {{- end }}
{{ include "webhookCall" . }}
{{- end }}

{{/* How the API server calls the webhook. Arguments: root, path. */}}
{{- define "webhookCall" -}}
{{- $root := index . 0 -}}
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
timeoutSeconds: {{ $root.Values.webhook.timeoutSeconds }}
clientConfig:
  service:
    name: {{ include "name" (list $root "webhook") }}
    namespace: {{ $root.Release.Namespace }}
    path: {{ index . 1 }}
    port: 443
  {{- with $root.Values.webhook.certificates.caBundle }}
  caBundle: {{ . }}
  {{- end }}
{{- end }}

{{- /* How an endpoint is scraped. The node's name is that of a series itself where it has one. */ -}}
{{- define "scrape" -}}
path: /metrics
interval: {{ .interval | default "30s" }}
honorLabels: true
relabelings:
  - {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}
{{- end }}
