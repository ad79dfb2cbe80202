{{/*
The groups of the files under rules/, as YAML: {groups: [...], alerts: [names], merged: whether values gave several
rules of an alert one severity}. Groups of one name become one, with records before alerts, as `rank-exporter rules` does
it; then the values of prometheusRule are applied to what was parsed, so that templates in annotations pass through
untouched.
*/}}
{{- define "rank-exporter.rules" -}}
{{- $order := list -}}
{{- $groups := dict -}}
{{- $alerts := list -}}
{{- $severities := list -}}
{{- range $folder := list "recording" "alerts" -}}
{{- range $path, $_ := $.Files.Glob (printf "rules/%s/*.yaml" $folder) -}}
{{- $document := $.Files.Get $path | fromYaml -}}
{{- if not (hasKey $document "groups") -}}
{{- fail (printf "%s is no rule file: package the chart again from a whole checkout" $path) -}}
{{- end -}}
{{- range $group := $document.groups -}}
{{- if not (hasKey $groups $group.name) -}}
{{- $order = append $order $group.name -}}
{{- $_ := set $groups $group.name (set (deepCopy $group) "rules" list) -}}
{{- end -}}
{{- $known := get $groups $group.name -}}
{{- $_ := set $known "rules" (concat $known.rules $group.rules) -}}
{{- range $rule := $group.rules -}}
{{- if $rule.alert -}}
{{- $alerts = append $alerts $rule.alert -}}
{{- $severities = append $severities $rule.labels.severity -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $alerts -}}
{{- fail "the chart holds no rules: package it from a whole checkout, in which helm/rank-exporter/rules is a link to rules/" -}}
{{- end -}}
{{- range $name, $_ := .Values.prometheusRule.alerts -}}
{{- if not (has $name $alerts) -}}
{{- fail (printf "prometheusRule.alerts.%s: there is no such alert; known are %s" $name (join ", " ($alerts | uniq))) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.prometheusRule.severities -}}
{{- if not (has $name $severities) -}}
{{- fail (printf "prometheusRule.severities.%s: there is no such severity; known are %s" $name ($severities | uniq | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- $finished := list -}}
{{- $labelled := dict -}}
{{- range $name := $order -}}
{{- $group := get $groups $name -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- $finish := include "rank-exporter.rule" (list $ $rule) -}}
{{- if $finish -}}
{{- $finish = fromYaml $finish -}}
{{- $rules = append $rules $finish -}}
{{- if $rule.alert -}}
{{- $key := printf "%s %s" $rule.alert (toJson $finish.labels) -}}
{{- $pair := dict "labels" $finish.labels "shipped" $rule.labels.severity -}}
{{- $_ := set $labelled $key (append (get $labelled $key | default list) $pair) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $finished = append $finished (set $group "rules" $rules) -}}
{{- end -}}
{{- end -}}
{{- /* Rules of one alert with the same labels would write the same series, and resolve each other's alerts. */ -}}
{{- $merged := false -}}
{{- range $pairs := $labelled -}}
{{- if gt (len $pairs) 1 -}}
{{- $merged = true -}}
{{- range $pairs -}}{{- $_ := set .labels "shipped_severity" .shipped -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $finished "alerts" ($alerts | uniq | sortAlpha) "merged" $merged | toYaml -}}
{{- end -}}

{{/* One rule with the values applied, as YAML; nothing for an alert that is switched off. Arguments: root, rule. */}}
{{- define "rank-exporter.rule" -}}
{{- $values := (index . 0).Values.prometheusRule -}}
{{- $rule := deepCopy (index . 1) -}}
{{- if $rule.alert -}}
{{- $own := default dict (get $values.alerts $rule.alert) -}}
{{- if ne (toString (dig "enabled" true $own)) "false" -}}
{{- $severity := dig "labels" "severity" "" $rule -}}
{{- $severity = default (get $values.severities $severity | default $severity) $own.severity -}}
{{- $labels := merge (dict "severity" $severity) (default dict $own.labels) $values.additionalAlertLabels (default dict $rule.labels) -}}
{{- $dashboard := printf "%s%s" (trimSuffix "/" $values.dashboardBaseUrl) $rule.annotations.dashboard_url -}}
{{- $runbook := dict "dashboard_url" $dashboard "runbook_url" (printf "%s%s.md" $values.runbookBaseUrl $rule.alert) -}}
{{- $annotations := merge (deepCopy (default dict $own.annotations)) $values.additionalAlertAnnotations $runbook (default dict $rule.annotations) -}}
{{- $_ := set $rule "labels" $labels -}}
{{- $_ := set $rule "annotations" $annotations -}}
{{- with $own.for -}}{{- $_ := set $rule "for" . -}}{{- end -}}
{{- toYaml $rule -}}
{{- end -}}
{{- else -}}
{{- if and (eq $rule.record "run:training_skew_budget:ratio") (not (kindIs "invalid" $values.skewBudgetRatio)) -}}
{{- $_ := set $rule "expr" (printf "0 * (\n  %s\n) + %s\n" (trim $rule.expr | replace "\n" "\n  ") (toString $values.skewBudgetRatio)) -}}
{{- end -}}
{{- toYaml $rule -}}
{{- end -}}
{{- end -}}
