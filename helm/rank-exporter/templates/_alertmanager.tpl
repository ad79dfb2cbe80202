{{/* A matcher such as severity="critical", as the matcher of an AlertmanagerConfig, as JSON. Arguments: root, text. */}}
{{- define "rank-exporter.matcher" -}}
{{- $severities := (index . 0).Values.prometheusRule.severities -}}
{{- $text := index . 1 -}}
{{- $pattern := "^\\s*([A-Za-z_][A-Za-z0-9_]*)\\s*(=~|!~|!=|=)\\s*\"(.*)\"\\s*$" -}}
{{- if not (regexMatch $pattern $text) -}}
{{- fail (printf "rules/alertmanager/alertmanager.yml: matcher %s cannot be read" $text) -}}
{{- end -}}
{{- $name := regexReplaceAll $pattern $text "${1}" -}}
{{- $type := regexReplaceAll $pattern $text "${2}" -}}
{{- $value := regexReplaceAll $pattern $text "${3}" -}}
{{- if and (eq $name "severity") (has $type (list "=" "!=")) -}}
{{- $value = get $severities $value | default $value -}}
{{- end -}}
{{- dict "name" $name "matchType" $type "value" $value | toJson -}}
{{- end -}}

{{/* A route of alertmanager.yml as a route of an AlertmanagerConfig, as YAML. Arguments: root, route. */}}
{{- define "rank-exporter.route" -}}
{{- $root := index . 0 -}}
{{- $source := index . 1 -}}
{{- $route := dict -}}
{{- range $from, $to := dict "receiver" "receiver" "group_by" "groupBy" "group_wait" "groupWait" "group_interval" "groupInterval" "repeat_interval" "repeatInterval" "continue" "continue" -}}
{{- if hasKey $source $from -}}{{- $_ := set $route $to (get $source $from) -}}{{- end -}}
{{- end -}}
{{- with $source.matchers -}}
{{- $matchers := list -}}
{{- range . -}}{{- $matchers = append $matchers (include "rank-exporter.matcher" (list $root .) | fromJson) -}}{{- end -}}
{{- $_ := set $route "matchers" $matchers -}}
{{- end -}}
{{- with $source.routes -}}
{{- $routes := list -}}
{{- range . -}}{{- $routes = append $routes (include "rank-exporter.route" (list $root .) | fromYaml) -}}{{- end -}}
{{- $_ := set $route "routes" $routes -}}
{{- end -}}
{{- toYaml $route -}}
{{- end -}}

{{/* Names of the receivers of alertmanager.yml, as a JSON list. */}}
{{- define "rank-exporter.receiverNames" -}}
{{- $names := list -}}
{{- range (.Files.Get "rules/alertmanager/alertmanager.yml" | fromYaml).receivers -}}{{- $names = append $names .name -}}{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/*
An inhibition of alertmanager.yml as inhibitions of an AlertmanagerConfig, as a JSON list. Where values gave several rules
of an alert one severity, a second one goes by the severity that they were shipped with. Arguments: root, inhibition,
whether there are such rules.
*/}}
{{- define "rank-exporter.inhibitions" -}}
{{- $root := index . 0 -}}
{{- $rule := index . 1 -}}
{{- $merged := index . 2 -}}
{{- $severity := "^\\s*severity\\b" -}}
{{- $told := false -}}
{{- range concat $rule.source_matchers $rule.target_matchers -}}
{{- $told = or $told (regexMatch $severity .) -}}
{{- end -}}
{{- $inhibitions := list -}}
{{- range $label := ternary (list "severity" "shipped_severity") (list "severity") (and $merged $told) -}}
{{- $inhibition := dict "equal" (default list $rule.equal) -}}
{{- range $side, $texts := dict "sourceMatch" $rule.source_matchers "targetMatch" $rule.target_matchers -}}
{{- $matchers := list -}}
{{- range $text := $texts -}}
{{- $matchers = append $matchers (include "rank-exporter.matcher" (list $root (regexReplaceAll $severity $text $label)) | fromJson) -}}
{{- if and $merged (eq $label "severity") (regexMatch $severity $text) -}}
{{- $matchers = append $matchers (dict "name" "shipped_severity" "matchType" "!~" "value" ".+") -}}
{{- end -}}
{{- end -}}
{{- $_ := set $inhibition $side $matchers -}}
{{- end -}}
{{- $inhibitions = append $inhibitions $inhibition -}}
{{- end -}}
{{- toJson $inhibitions -}}
{{- end -}}

{{/* Route and inhibition of rules/alertmanager/alertmanager.yml as the spec of an AlertmanagerConfig, as YAML. */}}
{{- define "rank-exporter.alertmanagerConfigSpec" -}}
{{- $shipped := .Files.Get "rules/alertmanager/alertmanager.yml" | fromYaml -}}
{{- $route := include "rank-exporter.route" (list . $shipped.route) | fromYaml -}}
{{- $rules := include "rank-exporter.rules" . | fromYaml -}}
{{- $ours := dict "name" "alertname" "matchType" "=~" "value" (join "|" $rules.alerts) -}}
{{- $_ := set $route "matchers" (prepend (default list $route.matchers) $ours) -}}
{{- $inhibitions := list -}}
{{- range $rule := default list $shipped.inhibit_rules -}}
{{- $inhibitions = concat $inhibitions (include "rank-exporter.inhibitions" (list $ $rule $rules.merged) | fromJsonArray) -}}
{{- end -}}
{{- dict "route" $route "receivers" .Values.alertmanagerConfig.receivers "inhibitRules" $inhibitions | toYaml -}}
{{- end -}}
