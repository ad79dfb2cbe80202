{{/* A matcher such as severity="critical", as a matcher of an AlertmanagerConfig. Arguments: root, text. */}}
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

{{/* Route and inhibition of rules/alertmanager/alertmanager.yml as the spec of an AlertmanagerConfig, as YAML. */}}
{{- define "rank-exporter.alertmanagerConfigSpec" -}}
{{- $shipped := .Files.Get "rules/alertmanager/alertmanager.yml" | fromYaml -}}
{{- $route := include "rank-exporter.route" (list . $shipped.route) | fromYaml -}}
{{- $alerts := (include "rank-exporter.rules" . | fromYaml).alerts -}}
{{- $ours := dict "name" "alertname" "matchType" "=~" "value" (join "|" $alerts) -}}
{{- $_ := set $route "matchers" (prepend (default list $route.matchers) $ours) -}}
{{- $inhibitions := list -}}
{{- range $rule := default list $shipped.inhibit_rules -}}
{{- $sources := list -}}
{{- range $rule.source_matchers -}}{{- $sources = append $sources (include "rank-exporter.matcher" (list $ .) | fromJson) -}}{{- end -}}
{{- $targets := list -}}
{{- range $rule.target_matchers -}}{{- $targets = append $targets (include "rank-exporter.matcher" (list $ .) | fromJson) -}}{{- end -}}
{{- $inhibitions = append $inhibitions (dict "sourceMatch" $sources "targetMatch" $targets "equal" (default list $rule.equal)) -}}
{{- end -}}
{{- dict "route" $route "receivers" .Values.alertmanagerConfig.receivers "inhibitRules" $inhibitions | toYaml -}}
{{- end -}}
