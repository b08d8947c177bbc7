{{- define "genai-server.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "genai-server.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "genai-server.labels" -}}
{{ include "genai-server.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "genai-server.secret" -}}
{{ .Values.keys.existingSecret | default (include "genai-server.name" .) }}
{{- end }}

{{- define "genai-server.checked" -}}
{{- if not (or .Values.keys.existingSecret .Values.keys.apiKeys .Values.keys.insecure) }}
{{- fail "keys.existingSecret or keys.apiKeys must be given, or keys.insecure: the server refuses to serve others without keys" }}
{{- end }}
{{- end }}
