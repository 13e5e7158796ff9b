{{- /* SPDX-License-Identifier: BSD-3-Clause */ -}}
{{- define "gpushare.selector" -}}
app.kubernetes.io/name: gpushare
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "gpushare.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "gpushare.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What the pods of all DaemonSets have in common. */ -}}
{{- define "gpushare.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  {{- toYaml .Values.nodeSelector | nindent 2 }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .gracePeriod | default 10 }}
{{- end }}

{{- /* Our own containers see all GPUs; "utility" provides NVML, and "compute" shows that there is a driver. */ -}}
{{- define "gpushare.gpus" -}}
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: compute,utility
{{- end }}

{{- /* The folders and the sockets belong to root. */ -}}
{{- define "gpushare.security" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gpushare.config" -}}
apiVersion: jupyter-gpushare/v1alpha1
kind: GpuShareConfig
{{ toYaml . }}
{{- end }}
