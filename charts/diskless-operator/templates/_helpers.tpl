{{- /* Names are quoted where they are used: a release may be called "1e3" and a namespace "123". */ -}}
{{- define "diskless.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "diskless.selector" -}}
app.kubernetes.io/name: diskless-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "diskless.labels" -}}
{{ include "diskless.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end -}}

{{- /* What the operator calls, and nothing more: e2e/tests/chart.rs compares it with what the API server was asked. */ -}}
{{- define "diskless.rules" -}}
- apiGroups: [diskless.dev]
  resources: [disklessclusters]
  verbs: [list, watch]
# Patching is for the finalizer.
- apiGroups: [diskless.dev]
  resources: [disklesstopics]
  verbs: [list, watch, patch]
- apiGroups: [diskless.dev]
  resources: [disklessclusters/status, disklesstopics/status]
  verbs: [patch]
# Where the admission plugin OwnerReferencesPermissionEnforcement is on, as in OpenShift, owning an object needs this.
- apiGroups: [diskless.dev]
  resources: [disklessclusters/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
# One pod at a time, within its disruption budget.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# The credentials that clusters refer to: that they are there, with their keys, whose names are all that is kept. And the secret by
# which the nodes of a cluster know each other: made once, never changed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch, create]
# Whether a topic is deleted together with its namespace.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{- define "diskless.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
{{- end -}}
