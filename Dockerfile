#   docker build -t genai-server .                            for CPUs
#   docker build -t genai-server --build-arg EXTRA=cuda .     for NVIDIA GPUs; more extras too, as in EXTRA=cpu,otel
# scripts/pin_dependencies.py brings deploy/constraints.txt up to date.

# All that the package needs, by a package without any content: this stays as it is while only the sources change.
FROM python:3.12.13-slim-trixie AS dependencies
ARG EXTRA=cpu
# The second is what newer versions of pip read for what a build needs.
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt \
    PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /app/.venv
COPY pyproject.toml deploy/constraints.txt ./
COPY native native
# The operators for CPUs are compiled by zig's compiler, which only their build has.
RUN mkdir -p src/genai_server models/demo && touch src/genai_server/__init__.py README.md LICENSE \
    && /app/.venv/bin/python -m pip install --quiet ./native ".[$EXTRA,audio,mcp]"

FROM dependencies AS package
COPY README.md LICENSE ./
COPY src src
# The package has it in itself.
COPY models/demo models/demo
RUN /app/.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir /app/wheel .

FROM python:3.12.13-slim-trixie
WORKDIR /app
# The folders are there, so that a new volume in their place is the server's, too.
RUN useradd --uid 10001 --create-home server && install -d -o server profiles /var/cache/genai-server
COPY --from=dependencies /app/.venv .venv
COPY --from=package /app/wheel wheel
RUN .venv/bin/python -m pip install --quiet --no-index --no-deps --force-reinstall wheel/*.whl
COPY deploy/health_check.py ./
USER server
# Others can reach it: give it GENAI_API_KEYS, or GENAI_INSECURE=true where only its own machine can.
ENV HOST=0.0.0.0 GENAI_CACHE_DIR=/var/cache/genai-server GENAI_PROFILE_DIR=/app/profiles
VOLUME ["/app/profiles", "/var/cache/genai-server"]
EXPOSE 8002
# It drains: give it GENAI_DRAIN_TIMEOUT and 15 s more (docker run --stop-timeout 45).
STOPSIGNAL SIGTERM
# A model has half an hour to load (GENAI_LOAD_TIMEOUT), and a dead engine five minutes to return.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30m --retries=10 CMD ["/app/.venv/bin/python", "/app/health_check.py"]
ENTRYPOINT ["/app/.venv/bin/python", "-m", "genai_server", "serve"]
