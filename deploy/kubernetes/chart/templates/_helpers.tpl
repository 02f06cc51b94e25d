{{- define "producerd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "producerd.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "producerd.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "producerd.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "producerd.serviceAccountName" -}}
{{- $own := .Values.serviceAccount.create | ternary (include "producerd.fullname" .) "default" }}
{{- default $own .Values.serviceAccount.name }}
{{- end }}

{{/* A pod has its settings with it, so a container that starts again in an old pod finds the old ones. */}}
{{- define "producerd.podAnnotations" -}}
{{- with .Values.podAnnotations }}
{{- toYaml . }}
{{ end }}
{{- dict "producerd.toml" .Values.config | toYaml }}
{{- end }}

{{/* What the DaemonSet's pods and the check before an upgrade share: the account, and the nodes. */}}
{{- define "producerd.onNodes" -}}
serviceAccountName: {{ include "producerd.serviceAccountName" . }}
# AWS's credentials come by a token of their own. The daemon asks nothing of Kubernetes.
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.daemonset.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.daemonset.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.daemonset.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "producerd.configVolume" -}}
- name: producerd-config
  downwardAPI:
    items:
      - path: producerd.toml
        fieldRef: {fieldPath: "metadata.annotations['producerd.toml']"}
{{- end }}

{{/* What never changes in the life of a release: a DaemonSet's selector cannot. */}}
{{- define "producerd.selectorLabels" -}}
app.kubernetes.io/name: {{ include "producerd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "producerd.metadata" -}}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "producerd.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* A setting at the top of producerd.toml as it is written there, or nothing. */}}
{{- define "producerd.setting" -}}
{{- $line := regexFind (printf `(?m)^[ \t]*["']?%s["']?[ \t]*=[^#\r\n]*` (last .)) (first .) }}
{{- splitList "=" $line | last | trim | replace "_" "" }}
{{- end }}

{{- define "producerd.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The labels of the pods that have a daemon. In mode sidecar Spark's own labels stand next to it. */}}
{{- define "producerd.podLabels" -}}
{{- if eq .Values.mode "daemonset" }}
{{- include "producerd.selectorLabels" . }}
{{- else -}}
producerd: {{ include "producerd.fullname" . }}
{{- end }}
{{- end }}

{{/* What must be as the rest of the pod has it, whatever the file says: executors, probes and port go by it. */}}
{{- define "producerd.env" -}}
- name: PRODUCERD_CONFIG
  value: /etc/producerd/producerd.toml
- name: PRODUCERD_SOCKET
  value: /run/producerd/producerd.sock
- name: PRODUCERD_ADMIN_SOCKET
  value: /run/producerd/producerd.admin.sock
- name: PRODUCERD_METRICS_LISTEN
  value: {{ .Values.metricsListen | quote }}
{{- end }}

{{/* The daemon's container, for both modes. */}}
{{- define "producerd.container" -}}
name: producerd
image: {{ include "producerd.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  {{- include "producerd.env" . | nindent 2 }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: producerd
    containerPort: {{ .Values.metricsListen | splitList ":" | last }}
startupProbe:
  exec:
    command: [/opt/producerd/bin/producerctl, ready]
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 60
# By HTTP, as a command would start a Python in the container's memory every few seconds.
readinessProbe:
  httpGet: {path: /-/ready, port: producerd}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /-/healthy, port: producerd}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - {name: producerd, mountPath: /run/producerd}
  - {name: producerd-config, mountPath: /etc/producerd, readOnly: true}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
