{{/* The pod template of executors. Spark puts into it what it needs itself. */}}
{{- define "producerd.executor" -}}
apiVersion: v1
kind: Pod
{{- if eq .Values.mode "sidecar" }}
metadata:
  labels:
    {{- include "producerd.podLabels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- include "producerd.podAnnotations" . | nindent 4 }}
{{- end }}
spec:
  # If the nodes of your executors have taints, tolerate them here: Spark has no property for it.
  # tolerations:
  #   - {key: workload, operator: Equal, value: spark, effect: NoSchedule}
  securityContext:
    # The group of the socket.
    supplementalGroups: [{{ .Values.securityContext.runAsGroup }}]
  {{- if eq .Values.mode "sidecar" }}
  # Spark looks at the older name before it puts an account of its own here.
  serviceAccount: {{ include "producerd.serviceAccountName" . }}
  serviceAccountName: {{ include "producerd.serviceAccountName" . }}
  # Spark 4.3 also needs it as spark.kubernetes.executor.terminationGracePeriodSeconds.
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  initContainers:
    # A native sidecar: it is ready before the executor starts, and gets its SIGTERM when the executor has ended. It has no
    # preStop hook: the kubelet would run that when the pod's end begins, while the executor still writes.
    - restartPolicy: Always
      {{- include "producerd.container" . | nindent 6 }}
  {{- end }}
  containers:
    - name: spark-kubernetes-executor
      volumeMounts:
        - {name: producerd, mountPath: /run/producerd, readOnly: true}
  volumes:
    {{- if eq .Values.mode "sidecar" }}
    - name: producerd
      emptyDir: {}
    {{- include "producerd.configVolume" . | nindent 4 }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- else }}
    - name: producerd
      hostPath: {path: {{ .Values.daemonset.hostPath | quote }}, type: Directory}
    {{- end }}
{{- end }}
