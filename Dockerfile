# The same commands as scripts/install and scripts/serve: pip install ".[EXTRA]", python -m genai_server serve.
#   docker build -t genai-server .                            for CPUs
#   docker build -t genai-server --build-arg EXTRA=cuda .     for NVIDIA GPUs

FROM python:3.12-slim AS build
ARG EXTRA=cpu
RUN python -m venv /app/.venv
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /app/.venv/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check ".[$EXTRA]"

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home server
WORKDIR /app
COPY --from=build /app/.venv .venv
COPY models/demo models/demo
RUN mkdir profiles && chown server profiles
USER server
# Others can reach it: give it GENAI_API_KEYS, or GENAI_INSECURE=true where only its own machine can.
ENV HOST=0.0.0.0
EXPOSE 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD [".venv/bin/python", "-c", "import os, ssl, urllib.request as r; s = 's' if os.environ.get('GENAI_TLS_CERT') else ''; r.urlopen(f\"http{s}://127.0.0.1:{os.environ.get('PORT') or 8002}/healthz\", timeout=4, context=ssl._create_unverified_context() if s else None)"]
ENTRYPOINT [".venv/bin/python", "-m", "genai_server", "serve"]
