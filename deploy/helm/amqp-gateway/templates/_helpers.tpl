{{- define "gateway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* Names of what is made are this and a word: 63 characters in all. */}}
{{- define "gateway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "gateway.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: amqp-gateway
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Annotations of an object: top, and its own. */}}
{{- define "gateway.annotations" -}}
{{- with merge (dict) (index . 1) (index . 0).Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gateway.image" -}}
{{- $registry := .Values.global.imageRegistry | default .Values.image.registry -}}
{{- $name := .Values.image.repository -}}
{{- if $registry }}{{ $name = printf "%s/%s" $registry $name }}{{ end -}}
{{- if .Values.image.digest -}}
{{ $name }}@{{ .Values.image.digest }}
{{- else -}}
{{ $name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "gateway.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "gateway.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* The job that migrates runs before the chart's own account is there. */}}
{{- define "gateway.migrateAccount" -}}
{{- if .Values.migrations.serviceAccountName -}}
{{ .Values.migrations.serviceAccountName }}
{{- else if .Values.serviceAccount.create -}}
{{ include "gateway.fullname" . }}-migrate
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* Pods of a role (top, of) without an autoscaler. */}}
{{- define "gateway.replicas" -}}
{{- if kindIs "invalid" .of.replicas -}}
{{ ternary 1 2 (eq .top.Values.ledger.kind "sqlite") }}
{{- else -}}
{{ .of.replicas }}
{{- end -}}
{{- end -}}

{{/* A digest of the Secrets that pods use, as the cluster has them: an upgrade rolls the pods where one has changed.
     Without a cluster (helm template, Argo CD) it is that of their names. */}}
{{- define "gateway.secrets" -}}
{{- $names := list .Values.cluster.existingSecret .Values.seal.existingSecret .Values.ledger.existingSecret -}}
{{- range .Values.secretMounts }}{{ $names = append $names .existingSecret }}{{ end -}}
{{- $found := list .Values.ledger.url -}}
{{- range compact $names -}}
{{- $found = append $found (printf "%s %s" . (toJson (lookup "v1" "Secret" $.Release.Namespace .).data)) -}}
{{- end -}}
{{- $found | join "\n" | sha256sum -}}
{{- end -}}

{{- define "gateway.sqlite" -}}
{{- if eq .Values.ledger.kind "sqlite" }}yes{{ end -}}
{{- end -}}

{{- define "gateway.ledgerSecret" -}}
{{ .Values.ledger.existingSecret | default (printf "%s-ledger" (include "gateway.fullname" .)) }}
{{- end -}}

{{- define "gateway.ledgerKey" -}}
{{- if .Values.ledger.existingSecret }}{{ .Values.ledger.existingSecretKey }}{{ else }}url{{ end -}}
{{- end -}}

{{- define "gateway.ledgerFile" -}}
{{- if and (eq .Values.secretsAs "file") (not (include "gateway.sqlite" .)) }}yes{{ end -}}
{{- end -}}

{{- define "gateway.ledgerMount" -}}
{{- if include "gateway.ledgerFile" . }}
- name: ledger
  mountPath: /etc/amqp-gateway/ledger
  readOnly: true
{{- end }}
{{- end -}}

{{- define "gateway.ledgerVolume" -}}
{{- if include "gateway.ledgerFile" . }}
{{- include "gateway.secretVolume" (tuple "ledger" (include "gateway.ledgerSecret" .) (include "gateway.ledgerKey" .) "url") }}
{{- end }}
{{- end -}}

{{/* A volume of one key of a Secret: its name, the Secret, the key, the file. */}}
{{- define "gateway.secretVolume" }}
- name: {{ index . 0 }}
  secret:
    secretName: {{ index . 1 }}
    defaultMode: 0440
    items: [{key: {{ index . 2 }}, path: {{ index . 3 }}}]
{{- end -}}

{{/* What no schema can say. */}}
{{- define "gateway.check" -}}
{{- if not (include "gateway.sqlite" .) -}}
{{- if not (or .Values.ledger.existingSecret .Values.ledger.url) -}}
{{- fail "ledger.existingSecret: name the Secret that holds the URL of your PostgreSQL, or set ledger.kind to sqlite for one process" -}}
{{- end -}}
{{- if not .Values.seal.existingSecret -}}
{{- fail "seal.existingSecret: name the Secret with the key that seals the secrets of endpoints (openssl rand -base64 32 makes one, kept as its key `key`); a key that a pod makes is lost with the pod, and so are the secrets" -}}
{{- end -}}
{{- end -}}
{{- $ports := dict -}}
{{- $listed := list -}}
{{- range $name, $front := .Values.config.fronts -}}
{{- if eq (include "gateway.frontPort" $front) "0" -}}
{{- fail (printf "config.fronts.%s.port: a Service needs a number, not 0" $name) -}}
{{- end -}}
{{- $listed = append $listed (tuple (printf "config.fronts.%s.port" $name) (include "gateway.frontPort" $front)) -}}
{{- end -}}
{{- range concat (list (tuple "ports.http" .Values.ports.http) (tuple "ports.ops" .Values.ports.ops) (tuple "cluster.port" .Values.cluster.port)) $listed -}}
{{- $port := index . 1 | toString -}}
{{- if hasKey $ports $port -}}
{{- fail (printf "%s is %s, and so is %s: each port of a process needs another number" (index . 0) $port (get $ports $port)) -}}
{{- end -}}
{{- $_ := set $ports $port (index . 0) -}}
{{- end -}}
{{- if and .Values.service.nodePort (eq .Values.service.type "ClusterIP") -}}
{{- fail "service.nodePort: a Service of the type ClusterIP has none; set service.type to NodePort or LoadBalancer" -}}
{{- end -}}
{{- if .Values.ingress.enabled -}}
{{- if not .Values.ingress.hosts }}{{ fail "ingress.hosts: name at least one host" }}{{ end -}}
{{- end -}}
{{- if and .Values.test.broker (not .Values.test.existingSecret) -}}
{{- fail "test.existingSecret: name the Secret with the API key for test.broker" -}}
{{- end -}}
{{- if and (gt (int .Values.drain.preStopSleepSeconds) 0) (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "drain.preStopSleepSeconds: Kubernetes %s has no preStop sleep, 1.30 has; use drain.delaySeconds" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- range tuple (tuple .Values.httpRoute.enabled "httpRoute.enabled" "gateway.networking.k8s.io/v1") (tuple .Values.metrics.serviceMonitor.enabled "metrics.serviceMonitor.enabled" "monitoring.coreos.com/v1") (tuple .Values.metrics.prometheusRule.enabled "metrics.prometheusRule.enabled" "monitoring.coreos.com/v1") (tuple (eq .Values.api.autoscaling.kind "keda") "api.autoscaling.kind" "keda.sh/v1alpha1") (tuple (eq .Values.worker.autoscaling.kind "keda") "worker.autoscaling.kind" "keda.sh/v1alpha1") -}}
{{- if and (index . 0) (not ($.Capabilities.APIVersions.Has (index . 2))) -}}
{{- fail (printf "%s: this cluster has no %s; install what brings it, or say --api-versions %s where no cluster is asked" (index . 1) (index . 2) (index . 2)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The port of a front. */}}
{{- define "gateway.frontPort" -}}
{{- if hasKey . "port" }}{{ int .port }}{{ else }}5673{{ end -}}
{{- end -}}

{{/* The settings file: the user's, and what is the chart's. */}}
{{- define "gateway.config" -}}
{{- $ours := dict "data_dir" "/data"
  "http" (dict "port" (int .Values.ports.http) "drain_delay" .Values.drain.delaySeconds "drain_timeout" .Values.drain.timeoutSeconds)
  "ops" (dict "port" (int .Values.ports.ops))
  "cluster" (dict "port" (int .Values.cluster.port))
  "ledger" dict
  "access" (dict "required" "always") -}}
{{- if .Values.cluster.existingSecret -}}
{{- $_ := set $ours.cluster "secret_file" "/etc/amqp-gateway/cluster/secret" -}}
{{- end -}}
{{- if .Values.seal.existingSecret -}}
{{- $_ := set $ours.ledger "secrets_file" "/etc/amqp-gateway/seal/key" -}}
{{- end -}}
{{- $fronts := dict -}}
{{- range $name, $front := .Values.config.fronts -}}
{{- $_ := set $fronts $name (dict "host" $.Values.listenAddress) -}}
{{- end -}}
{{- if $fronts }}{{ $_ := set $ours "fronts" $fronts }}{{ end -}}
{{- mergeOverwrite (deepCopy .Values.config) $ours | toPrettyJson -}}
{{- end -}}

{{- define "gateway.podSecurity" -}}
{{- $found := dict "runAsNonRoot" true "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- with .Values.pod.runAsUser }}{{ $_ := merge $found (dict "runAsUser" (int .) "runAsGroup" (int .)) }}{{ end -}}
{{- with .Values.pod.fsGroup }}{{ $_ := set $found "fsGroup" (int .) }}{{ end -}}
{{- mergeOverwrite $found (deepCopy .Values.podSecurityContext) | toYaml -}}
{{- end -}}

{{/* What all pods have: top, of (the values of one kind of pod). */}}
{{- define "gateway.pod" -}}
{{- $top := .top -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $top.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  {{- include "gateway.podSecurity" $top | nindent 2 }}
{{- with $top.Values.pod.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $top.Values.pod.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with $top.Values.pod.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $top.Values.pod.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of a pod that runs once: top, of, role. */}}
{{- define "gateway.oncePod" -}}
labels:
  {{- with .of.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- include "gateway.labels" .top | nindent 2 }}
  app.kubernetes.io/component: {{ .role }}
{{- include "gateway.annotations" (list .top .of.podAnnotations) }}
{{- end -}}

{{- define "gateway.containerSecurity" -}}
{{- $found := dict "allowPrivilegeEscalation" false "privileged" false "readOnlyRootFilesystem" true "runAsNonRoot" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- mergeOverwrite $found (deepCopy .Values.containerSecurityContext) | toYaml -}}
{{- end -}}

{{- define "gateway.ledgerEnv" -}}
{{- if include "gateway.ledgerFile" . }}
- name: GATEWAY_LEDGER_URL_FILE
  value: /etc/amqp-gateway/ledger/url
{{- else if not (include "gateway.sqlite" .) }}
- name: GATEWAY_LEDGER_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "gateway.ledgerSecret" . }}
      key: {{ include "gateway.ledgerKey" . }}
{{- end }}
{{- end -}}

{{/* The container that migrates: of the job, and before each start. */}}
{{- define "gateway.migrate" -}}
- name: migrate
  image: {{ include "gateway.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [gateway, migrate, --wait, {{ .Values.migrations.waitSeconds | quote }}]
  env:
    {{- include "gateway.ledgerEnv" . | nindent 4 }}
    - name: GATEWAY_DATA_DIR
      value: /tmp
    {{- with .Values.migrations.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.migrations.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "gateway.containerSecurity" . | nindent 4 }}
  resources:
    {{- toYaml .Values.migrations.resources | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    {{- include "gateway.ledgerMount" . | nindent 4 }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "gateway.spread" -}}
{{- if .of.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml .of.topologySpreadConstraints | nindent 2 }}
{{- else if ne .of.spread "none" }}
topologySpreadConstraints:
  {{- range tuple "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ eq $.of.spread "hard" | ternary "DoNotSchedule" "ScheduleAnyway" }}
    labelSelector:
      matchLabels:
        {{- include "gateway.selector" $.top | nindent 8 }}
        app.kubernetes.io/component: {{ $.role }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A Deployment: top, role (api, worker), of (its values). */}}
{{- define "gateway.deployment" -}}
{{- $top := .top -}}
{{- $of := .of -}}
{{- $role := .role -}}
{{- $sqlite := include "gateway.sqlite" $top -}}
{{- $drain := $top.Values.drain -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "gateway.fullname" $top }}-{{ $role }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "gateway.labels" $top | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
  {{- include "gateway.annotations" (list $top (dict)) | nindent 2 }}
spec:
  {{- if eq $of.autoscaling.kind "none" }}
  replicas: {{ include "gateway.replicas" . }}
  {{- end }}
  revisionHistoryLimit: 5
  minReadySeconds: 2
  strategy:
    {{- if $sqlite }}
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
    {{- end }}
  selector:
    matchLabels:
      {{- include "gateway.selector" $top | nindent 6 }}
      app.kubernetes.io/component: {{ $role }}
  template:
    metadata:
      labels:
        {{- with $of.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- include "gateway.labels" $top | nindent 8 }}
        app.kubernetes.io/component: {{ $role }}
      annotations:
        checksum/config: {{ include "gateway.config" $top | sha256sum }}
        checksum/secrets: {{ include "gateway.secrets" $top }}
        {{- with merge (dict) $of.podAnnotations $top.Values.commonAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "gateway.serviceAccount" $top }}
      terminationGracePeriodSeconds: {{ add $drain.preStopSleepSeconds $drain.delaySeconds $drain.timeoutSeconds $drain.closeSeconds }}
      {{- include "gateway.pod" . | nindent 6 }}
      {{- $migrates := and (eq $top.Values.migrations.mode "init") (not $sqlite) }}
      {{- if or $migrates $of.initContainers }}
      initContainers:
        {{- with $of.initContainers }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- if $migrates }}
        {{- include "gateway.migrate" $top | nindent 8 }}
        {{- end }}
      {{- end }}
      containers:
        - name: gateway
          image: {{ include "gateway.image" $top }}
          imagePullPolicy: {{ $top.Values.image.pullPolicy }}
          command: [gateway, serve, --config, /etc/amqp-gateway/gateway.json, --role, {{ ternary "all" $role (eq $sqlite "yes") }}]
          env:
            {{- include "gateway.ledgerEnv" $top | nindent 12 }}
            - name: GATEWAY_HTTP_HOST
              value: {{ $top.Values.listenAddress | quote }}
            - name: GATEWAY_OPS_HOST
              value: {{ $top.Values.listenAddress | quote }}
            - name: GATEWAY_CLUSTER_HOST
              valueFrom:
                fieldRef:
                  fieldPath: status.podIP
            {{- with $of.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- with $of.extraEnvFrom }}
          envFrom:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            {{- if eq $role "api" }}
            - name: http
              containerPort: {{ $top.Values.ports.http }}
            {{- range $number, $name := keys ($top.Values.config.fronts | default dict) | sortAlpha }}
            - name: front-{{ $number }}
              containerPort: {{ include "gateway.frontPort" (get $top.Values.config.fronts $name) }}
            {{- end }}
            {{- end }}
            - name: ops
              containerPort: {{ $top.Values.ports.ops }}
            {{- if not $sqlite }}
            - name: cluster
              containerPort: {{ $top.Values.cluster.port }}
            {{- end }}
          startupProbe:
            httpGet: {path: /startupz, port: ops}
            {{- toYaml $top.Values.probes.startup | nindent 12 }}
          livenessProbe:
            httpGet: {path: /livez, port: ops}
            {{- toYaml $top.Values.probes.liveness | nindent 12 }}
          readinessProbe:
            httpGet: {path: /readyz, port: ops}
            {{- toYaml $top.Values.probes.readiness | nindent 12 }}
          {{- if $of.lifecycle }}
          lifecycle:
            {{- toYaml $of.lifecycle | nindent 12 }}
          {{- else if gt (int $drain.preStopSleepSeconds) 0 }}
          lifecycle:
            preStop:
              sleep:
                seconds: {{ $drain.preStopSleepSeconds }}
          {{- end }}
          securityContext:
            {{- include "gateway.containerSecurity" $top | nindent 12 }}
          resources:
            {{- toYaml $of.resources | nindent 12 }}
          volumeMounts:
            - name: config
              mountPath: /etc/amqp-gateway/gateway.json
              subPath: gateway.json
              readOnly: true
            - name: tmp
              mountPath: /tmp
            - name: data
              mountPath: /data
            {{- include "gateway.ledgerMount" $top | nindent 12 }}
            {{- if $top.Values.cluster.existingSecret }}
            - name: cluster
              mountPath: /etc/amqp-gateway/cluster
              readOnly: true
            {{- end }}
            {{- if $top.Values.seal.existingSecret }}
            - name: seal
              mountPath: /etc/amqp-gateway/seal
              readOnly: true
            {{- end }}
            {{- range $top.Values.secretMounts }}
            - name: secret-{{ .name }}
              mountPath: /etc/amqp-gateway/secrets/{{ .name }}
              readOnly: true
            {{- end }}
            {{- with $top.Values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        {{- with $of.sidecars }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
        - name: config
          configMap:
            name: {{ include "gateway.fullname" $top }}-config
        - name: tmp
          emptyDir: {}
        - name: data
          {{- if $sqlite }}
          persistentVolumeClaim:
            claimName: {{ $top.Values.ledger.persistence.existingClaim | default (printf "%s-data" (include "gateway.fullname" $top)) }}
          {{- else }}
          emptyDir: {}
          {{- end }}
        {{- include "gateway.ledgerVolume" $top | nindent 8 }}
        {{- if $top.Values.cluster.existingSecret }}
        {{- include "gateway.secretVolume" (tuple "cluster" $top.Values.cluster.existingSecret $top.Values.cluster.existingSecretKey "secret") | nindent 8 }}
        {{- end }}
        {{- if $top.Values.seal.existingSecret }}
        {{- include "gateway.secretVolume" (tuple "seal" $top.Values.seal.existingSecret $top.Values.seal.existingSecretKey "key") | nindent 8 }}
        {{- end }}
        {{- range $top.Values.secretMounts }}
        - name: secret-{{ .name }}
          secret:
            secretName: {{ .existingSecret }}
            defaultMode: 0440
        {{- end }}
        {{- with $top.Values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- include "gateway.spread" . | nindent 6 }}
      affinity:
        {{- if $of.affinity }}
        {{- toYaml $of.affinity | nindent 8 }}
        {{- else }}
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- include "gateway.selector" $top | nindent 20 }}
                    app.kubernetes.io/component: {{ $role }}
        {{- end }}
{{- end -}}

{{/* What stands beside a Deployment: budget and autoscaler. */}}
{{- define "gateway.beside" -}}
{{- $top := .top -}}
{{- $of := .of -}}
{{- $name := printf "%s-%s" (include "gateway.fullname" $top) .role -}}
{{- $scaling := $of.autoscaling -}}
{{- $most := ternary (include "gateway.replicas" .) (toString $scaling.minReplicas) (eq $scaling.kind "none") -}}
{{- if and $of.disruptionBudget.enabled (gt (int $most) 1) }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "gateway.labels" $top | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
  {{- include "gateway.annotations" (list $top (dict)) | nindent 2 }}
spec:
  {{- if $of.disruptionBudget.minAvailable }}
  minAvailable: {{ $of.disruptionBudget.minAvailable }}
  {{- else }}
  maxUnavailable: {{ $of.disruptionBudget.maxUnavailable }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "gateway.selector" $top | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
{{- end }}
{{- if eq $scaling.kind "hpa" }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "gateway.labels" $top | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
  {{- include "gateway.annotations" (list $top (dict)) | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ $name }}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ $scaling.targetCPU }}
    {{- if gt (int $scaling.targetRequests) 0 }}
    - type: Pods
      pods:
        metric:
          name: amqpgw_http_requests_running
        target:
          type: AverageValue
          averageValue: {{ $scaling.targetRequests | quote }}
    {{- end }}
{{- else if eq $scaling.kind "keda" }}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ $name }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "gateway.labels" $top | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
  {{- include "gateway.annotations" (list $top (dict)) | nindent 2 }}
spec:
  scaleTargetRef:
    name: {{ $name }}
  minReplicaCount: {{ $scaling.minReplicas }}
  maxReplicaCount: {{ $scaling.maxReplicas }}
  pollingInterval: {{ $scaling.keda.pollingInterval }}
  cooldownPeriod: {{ $scaling.keda.cooldownPeriod }}
  triggers:
    {{- toYaml $scaling.keda.triggers | nindent 4 }}
{{- end }}
{{- end -}}
