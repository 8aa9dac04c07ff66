# The server of a deployment (docs/deploy.md). Build it from the project's folder: -f deploy/superlink.Dockerfile .
# No key is in it: credentials are mounted.
# The tag is for readers: the digest decides (docs/upkeep.md, "Containers").
ARG BASE_IMAGE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1
FROM ${BASE_IMAGE}

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/app \
    FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME=/state/flwr HF_HOME=/tmp/huggingface MPLCONFIGDIR=/tmp/matplotlib

WORKDIR /app
COPY deploy/requirements.txt ./
RUN python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.txt

RUN groupadd --gid 10001 fedpriv \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp fedpriv \
    && mkdir -p /state/flwr /runs \
    && chown -R 10001:10001 /state /runs

# The app as it is bundled: the same files, the same digest.
COPY pyproject.toml README.md LICENSE NOTICE .gitignore ./
COPY fedpriv ./fedpriv
COPY strategies ./strategies
COPY clients ./clients
COPY conf ./conf
# Where Flower's command line finds this SuperLink; a new volume starts with it.
COPY --chown=10001:10001 deploy/flower.toml /state/flwr/config.toml

USER 10001:10001
VOLUME ["/state", "/runs"]
EXPOSE 8000

# The certificate must name localhost too.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import ssl, urllib.request as u; u.urlopen('https://localhost:8000/health', timeout=5, context=ssl.create_default_context(cafile='/credentials/ca.crt'))"]

ENTRYPOINT ["python", "-m", "fedpriv.superlink"]
CMD ["credentials=/credentials", "host=0.0.0.0", "port=8000", "database=/state/superlink.db"]
