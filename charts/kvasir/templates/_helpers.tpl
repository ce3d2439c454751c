{{/* Name of the operator's objects: the release's. */}}
{{- define "kvasir.name" -}}
{{- if contains "kvasir" .Release.Name -}}{{ .Release.Name | trunc 45 | trimSuffix "-" }}{{- else -}}{{ printf "%s-kvasir" (.Release.Name | trunc 38 | trimSuffix "-") }}{{- end -}}
{{- end -}}

{{/* Value of app.kubernetes.io/name on the operator's pods. Policies of services select by it and the namespace. */}}
{{- define "kvasir.operator" -}}{{ include "kvasir.name" . }}-operator{{- end -}}

{{- define "kvasir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}{{ .Values.serviceAccount.name | default (include "kvasir.operator" .) }}{{- else -}}{{ .Values.serviceAccount.name | default "default" }}{{- end -}}
{{- end -}}

{{- define "kvasir.selector" -}}
app.kubernetes.io/name: {{ include "kvasir.operator" . }}
{{- end -}}

{{- define "kvasir.labels" -}}
{{ include "kvasir.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: kvasir
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kvasir.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rights of the operator on what belongs to services. */}}
{{- define "kvasir.rules" -}}
- apiGroups: [kvasir.dev]
  resources: [inferenceservices]
  verbs: [list, watch]
- apiGroups: [kvasir.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
# Owner references that block deletion need it where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [kvasir.dev]
  resources: [inferenceservices/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# Read by name and never listed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets, deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies, ingresses]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# A gateway's right to read its own configuration. Kubernetes lets nobody give more rights than they have.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [list, create, patch]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, servicemonitors, prometheusrules]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes, backendtlspolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, list, watch, create, patch, delete]
{{- end -}}
