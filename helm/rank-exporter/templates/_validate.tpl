{{/* Combinations of values that cannot work. Each stops with what was seen and what to do. */}}
{{- define "rank-exporter.validate" -}}
{{- $monitor := .Values.podMonitor -}}
{{- if and $monitor.enabled .Values.scrapeAnnotations.enabled -}}
{{- fail "podMonitor.enabled and scrapeAnnotations.enabled are both true, so every pod would be scraped twice: switch one off" -}}
{{- end -}}
{{- if and .Values.training.anyNamespace .Values.training.namespaces -}}
{{- fail (printf "training.anyNamespace is true, but training.namespaces lists %s: empty the list, or switch anyNamespace off" (join ", " .Values.training.namespaces)) -}}
{{- end -}}
{{- if not (or .Values.training.podSelector.matchLabels .Values.training.podSelector.matchExpressions) -}}
{{- fail "training.podSelector selects every pod: give matchLabels or matchExpressions that training pods have" -}}
{{- end -}}
{{- range $what := list "networkPolicy" "alertmanagerConfig" "webConfig" -}}
{{- if and (get $.Values $what).enabled $.Values.training.anyNamespace -}}
{{- fail (printf "%s.enabled needs to know the namespaces, but training.anyNamespace is true: list them in training.namespaces instead" $what) -}}
{{- end -}}
{{- end -}}
{{- $own := list "run" "rank" "host" "phase" "shard" "device" "reason" "backend" "bucket" "clock" "complete" "digest" "epoch" -}}
{{- $own = concat $own (list "framework" "group" "local_rank" "padded" "process" "samples" "started" "state" "version" "waits_in" "world_size") -}}
{{- range $label := $monitor.podTargetLabels -}}
{{- if has (regexReplaceAll "[^A-Za-z0-9_]" $label "_") $own -}}
{{- fail (printf "podMonitor.podTargetLabels has %s, which the exporter's own label of that name would clash with: rename the pod's label" $label) -}}
{{- end -}}
{{- end -}}
{{- include "rank-exporter.validateAlertLabels" . -}}
{{- include "rank-exporter.validateWebConfig" . -}}
{{- include "rank-exporter.validateReceivers" . -}}
{{- end -}}

{{/* Labels for alerts that would be ignored, or would hide what alerts are told apart by. */}}
{{- define "rank-exporter.validateAlertLabels" -}}
{{- $rule := .Values.prometheusRule -}}
{{- $given := dict "prometheusRule.additionalAlertLabels" $rule.additionalAlertLabels -}}
{{- range $name, $own := $rule.alerts -}}
{{- $_ := set $given (printf "prometheusRule.alerts.%s.labels" $name) (dig "labels" dict (default dict $own)) -}}
{{- end -}}
{{- range $path, $labels := $given -}}
{{- range $label, $value := $labels -}}
{{- if eq $label "severity" -}}
{{- fail (printf "%s.severity is %q, which no alert would get: use prometheusRule.severities, or prometheusRule.alerts.NAME.severity" $path $value) -}}
{{- end -}}
{{- if has $label (list "alertname" "cluster" "namespace" "run" "rank" "host" "phase" "reason" "shipped_severity") -}}
{{- fail (printf "%s.%s is %q, which would hide what alerts are told apart by: give it another name" $path $label $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rank-exporter.validateWebConfig" -}}
{{- $monitor := .Values.podMonitor -}}
{{- if and .Values.webConfig.enabled (not .Values.webConfig.config) -}}
{{- fail "webConfig.enabled is true, but webConfig.config is empty: give tls_server_config or basic_auth_users" -}}
{{- end -}}
{{- if and $monitor.enabled (ne $monitor.scheme "https") $monitor.tlsConfig -}}
{{- fail "podMonitor.tlsConfig is given, but podMonitor.scheme is http: set it to https" -}}
{{- end -}}
{{- if and .Values.webConfig.enabled $monitor.enabled -}}
{{- $tls := .Values.webConfig.config.tls_server_config -}}
{{- if and $tls (ne $monitor.scheme "https") -}}
{{- fail "webConfig.config has tls_server_config, but podMonitor.scheme is http, so every scrape would fail: set it to https" -}}
{{- end -}}
{{- if and (not $tls) (eq $monitor.scheme "https") -}}
{{- fail "podMonitor.scheme is https, but webConfig.config has no tls_server_config, so every scrape would fail: set it to http" -}}
{{- end -}}
{{- if and .Values.webConfig.config.basic_auth_users (not $monitor.basicAuth) -}}
{{- fail "webConfig.config has basic_auth_users, but podMonitor.basicAuth is empty, so every scrape would get 401: name the Secrets of a user" -}}
{{- end -}}
{{- if and $tls (eq (toString $tls.client_auth_type) "RequireAndVerifyClientCert") (not $monitor.tlsConfig.cert) -}}
{{- fail "webConfig.config requires client certificates, but podMonitor.tlsConfig has no cert, so every scrape would fail: give cert and keySecret" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "rank-exporter.validateReceivers" -}}
{{- if .Values.alertmanagerConfig.enabled -}}
{{- $given := list -}}
{{- range .Values.alertmanagerConfig.receivers -}}{{- $given = append $given .name -}}{{- end -}}
{{- range $name := include "rank-exporter.receiverNames" . | fromJsonArray -}}
{{- if not (has $name $given) -}}
{{- fail (printf "alertmanagerConfig.receivers has no receiver named %s, to which the routes lead: add it" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
