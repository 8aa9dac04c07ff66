# A node of a deployment (docs/deploy.md). Build it from the project's folder: -f deploy/supernode.Dockerfile .
# No key, policy or picture is in it: all of them are mounted.
# The tag is for readers: the digest decides (docs/upkeep.md, "Containers").
ARG BASE_IMAGE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1
FROM ${BASE_IMAGE}

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app \
    FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME=/tmp/flwr HF_HOME=/tmp/huggingface MPLCONFIGDIR=/tmp/matplotlib

WORKDIR /app
COPY deploy/node.txt ./
RUN python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r node.txt

RUN groupadd --gid 10001 fedpriv \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp fedpriv \
    && mkdir -p /data /var/lib/fedpriv \
    && chown -R 10001:10001 /data /var/lib/fedpriv

COPY pyproject.toml README.md LICENSE NOTICE .gitignore ./
COPY fedpriv ./fedpriv
COPY strategies ./strategies
COPY clients ./clients
COPY conf ./conf

USER 10001:10001
# Pictures and ledger; the counter, which must never be in the same volume or backup.
VOLUME ["/data", "/var/lib/fedpriv"]

# The SuperNode's own service, which listens inside the container only.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9094/health', timeout=5)"]

ENTRYPOINT ["python", "-m", "fedpriv.node"]
CMD ["run", "policy=/etc/fedpriv/policy.yaml", "data=/data", "superlink=superlink:8000", "credentials=/credentials", "client=0"]
