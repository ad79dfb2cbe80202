{{/* Name of the chart. */}}
{{- define "rank-exporter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the objects; 40 characters leave room for the suffixes. */}}
{{- define "rank-exporter.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "rank-exporter.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "rank-exporter.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/name" (include "rank-exporter.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
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
