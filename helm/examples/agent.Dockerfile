# The agent as a sidecar: no torch, no root, nothing to write to. Built from the project's folder:
#
#   docker build -f helm/examples/agent.Dockerfile -t registry.example.com/rank-exporter-agent:1 .
FROM python:3.13-slim AS build
COPY pyproject.toml README.md CHANGELOG.md LICENSE /src/
COPY exporter /src/exporter
COPY rules /src/rules
COPY grafana/dashboards /src/grafana/dashboards
RUN python -m venv /opt/rank-exporter \
    && /opt/rank-exporter/bin/pip install --no-cache-dir '/src[auth]'

FROM python:3.13-slim
LABEL org.opencontainers.image.title="rank-exporter agent" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/rank-exporter/rank-exporter"
COPY --from=build /opt/rank-exporter /opt/rank-exporter
ENV PATH=/opt/rank-exporter/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Give the ranks' containers the same user: segments are readable by their owner alone.
USER 10911:10911
EXPOSE 10911
ENTRYPOINT ["rank-exporter", "agent"]
