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
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* What the operator calls, and nothing more; e2e/tests/operator_runtime.rs runs it with these rights alone. */ -}}
{{- define "diskless.rules" -}}
- apiGroups: [diskless.dev]
  resources: [disklessclusters]
  verbs: [get, list, watch]
- apiGroups: [diskless.dev]
  resources: [disklesstopics]
  verbs: [get, list, watch, patch]
- apiGroups: [diskless.dev]
  resources: [disklessclusters/status, disklesstopics/status]
  verbs: [patch]
# Where OwnerReferencesPermissionEnforcement is on (OpenShift), owning an object needs this.
- apiGroups: [diskless.dev]
  resources: [disklessclusters/finalizers, disklesstopics/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [serviceaccounts, services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# One pod at a time, within its disruption budget.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# The credentials that clusters refer to: their presence and keys are checked, their values are not kept.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch]
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
