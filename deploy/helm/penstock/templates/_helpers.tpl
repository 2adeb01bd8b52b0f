{{/* Names of objects: the release's name, with the chart's where that lacks it. */}}
{{- define "penstock.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels that select the pods of a role: (list $ "api"). */}}
{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- define "penstock.image" -}}
{{- $image := index . 1 -}}
image: {{ printf "%s:%s" $image.repository (default (index . 0).Chart.AppVersion $image.tag) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* host:port of every scheduler, each behind a Service of its own. */}}
{{- define "penstock.schedulers" -}}
{{- $addresses := list -}}
{{- range $number := until (int .Values.scheduler.replicas) -}}
{{- $addresses = append $addresses (printf "%s-scheduler-%d:8010" (include "penstock.name" $) $number) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end }}

{{/*
The environment of a role: (dict "root" $ "settings" map "required" keys "optional" keys), the keys of existingSecret.
`settings` wins over the settings of all roles.
*/}}
{{- define "penstock.env" -}}
{{- $root := .root -}}
{{- $own := dict
  "PENSTOCK_DATA_DIR" "/var/lib/penstock"
  "PENSTOCK_HOST" "0.0.0.0"
  "PENSTOCK_METRICS_HOST" "0.0.0.0"
  "PENSTOCK_METRICS_PORT" "9100"
  "PENSTOCK_SCHEDULER_HOST" "0.0.0.0"
  "PENSTOCK_SCHEDULER_PORT" "8010"
  "PENSTOCK_SCHEDULER_TLS" "never"
  "PENSTOCK_JOIN_REQUIRED" "never"
  "PENSTOCK_SCHEDULERS" (include "penstock.schedulers" $root) -}}
{{- /* Not by `merge`, which takes an empty string for a value that is missing. */}}
{{- range list $root.Values.settings .settings }}
{{- range $name, $value := . }}{{ $_ := set $own $name $value }}{{ end }}
{{- end }}
{{- range $name, $value := $own }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- range .required }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $root.Values.existingSecret }}, key: {{ . }}}}
{{- end }}
{{- range .optional }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $root.Values.existingSecret }}, key: {{ . }}, optional: true}}
{{- end }}
{{- end }}

{{/* What the pods of all roles share: (list $ role's values role). */}}
{{- define "penstock.pod" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
automountServiceAccountToken: false
# Without this a Service named penstock-scheduler would set PENSTOCK_SCHEDULER_PORT to tcp://..., which is a setting.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $role.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $role.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "penstock.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Spreads the pods of a component over nodes where there are several: (list $ "api"). */}}
{{- define "penstock.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "penstock.selector" . | nindent 8 }}
{{- end }}

{{/*
Probes of a role on its internal port. A process that answers 503 lacks something that no restart brings back, so only
one that does not answer, or says that it stands still, is restarted: `cli/probe.py`.
*/}}
{{- define "penstock.probes" -}}
startupProbe:
  exec: {command: [python, -m, cli.probe, --alive, "http://127.0.0.1:9100/healthz"]}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 36
readinessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  exec: {command: [python, -m, cli.probe, --alive, "http://127.0.0.1:9100/healthz"]}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 3
{{- end }}
