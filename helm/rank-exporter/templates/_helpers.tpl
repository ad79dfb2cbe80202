{{/*
A text cut to a length, as a name or the value of a label: both end with a letter or digit wherever the cut falls.
Arguments: length, text.
*/}}
{{- define "rank-exporter.cut" -}}
{{- regexReplaceAll "[^A-Za-z0-9]+$" (index . 1 | trunc (index . 0)) "" -}}
{{- end -}}

{{/* Name of the chart. */}}
{{- define "rank-exporter.name" -}}
{{- include "rank-exporter.cut" (list 63 (default .Chart.Name .Values.nameOverride)) -}}
{{- end -}}

{{/* Name of the objects; 40 characters leave room for the suffixes. */}}
{{- define "rank-exporter.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- include "rank-exporter.cut" (list 40 .Values.fullnameOverride) -}}
{{- else -}}
{{- $name := include "rank-exporter.name" . -}}
{{- if contains $name .Release.Name -}}
{{- include "rank-exporter.cut" (list 40 .Release.Name) -}}
{{- else -}}
{{- include "rank-exporter.cut" (list 40 (printf "%s-%s" .Release.Name $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "rank-exporter.labels" -}}
{{- $own := dict
  "helm.sh/chart" (include "rank-exporter.cut" (list 63 (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")))
  "app.kubernetes.io/name" (include "rank-exporter.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" (include "rank-exporter.cut" (list 63 (.Chart.AppVersion | replace "+" "_")))
  "app.kubernetes.io/managed-by" .Release.Service
-}}
{{- toYaml (merge (deepCopy .Values.commonLabels) $own) -}}
{{- end -}}

{{/* Labels of an object that the Prometheus operator selects. Arguments: list of the root and the object's own labels. */}}
{{- define "rank-exporter.operatorLabels" -}}
{{- $root := index . 0 -}}
{{- $common := include "rank-exporter.labels" $root | fromYaml -}}
{{- toYaml (merge (deepCopy (index . 1)) $root.Values.operatorLabels $common) -}}
{{- end -}}

{{/* Namespaces of training pods, as a JSON list. */}}
{{- define "rank-exporter.namespaces" -}}
{{- default (list .Release.Namespace) .Values.training.namespaces | toJson -}}
{{- end -}}

{{/* The longest interval of scrapes with which the rules, as shipped, see every rank though a scrape is lost. */}}
{{- define "rank-exporter.longestInterval" -}}45s{{- end -}}

{{/* A duration such as 1m30s in milliseconds. */}}
{{- define "rank-exporter.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 "w" 604800000 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|[smhdw])" . -1 -}}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | int64) (get $units (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}
