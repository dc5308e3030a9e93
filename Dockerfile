# Two images: `ingest`, without Paddle and without compilers, and `trainer`, which holds everything.
#
#   docker build --target ingest  -t headrace-ingest  .
#   docker build --target trainer -t headrace-trainer .
#
# BASE           Python 3.11 or 3.12 with venv and apt, as `python3`
# TRAINER_BASE   the same for the trainer, where it should be another one (a CUDA image)
# PADDLE         empty: the CPU wheel that requirements/trainer.txt pins. Else a requirement, such as
#                paddlepaddle-gpu==3.3.1, taken from PADDLE_INDEX (docs/install.md). `base`: TRAINER_BASE has Paddle
#
# Order: packages by requirements file first, headrace's own wheel last, in a layer of its own: a changed source file costs
# seconds and kilobytes.

ARG BASE=python:3.11-slim
ARG TRAINER_BASE=${BASE}

# headrace as a wheel: the links in src/headrace become plain folders in it
FROM ${BASE} AS wheel
WORKDIR /build
COPY requirements/build.txt requirements/
RUN --mount=type=cache,target=/cache \
    python3 -m venv /venv && /venv/bin/pip install --cache-dir /cache -q --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY pipeline pipeline
COPY ingest ingest
COPY trainer trainer
COPY src src
RUN /venv/bin/pip wheel -q --no-deps --no-build-isolation --wheel-dir /wheels .

FROM ${BASE} AS ingest-packages
COPY requirements/build.txt requirements/ingest.txt /requirements/
RUN --mount=type=cache,target=/cache \
    python3 -m venv /opt/headrace \
    && /opt/headrace/bin/pip install --cache-dir /cache -q --require-hashes -r /requirements/build.txt \
    && /opt/headrace/bin/pip install --cache-dir /cache -q --require-hashes --no-build-isolation -r /requirements/ingest.txt

FROM ${TRAINER_BASE} AS trainer-packages
ARG PADDLE=
ARG PADDLE_INDEX=
COPY requirements/build.txt requirements/trainer.txt /requirements/
COPY deploy/install-trainer.sh /requirements/
RUN --mount=type=cache,target=/cache PIP_CACHE_DIR=/cache sh /requirements/install-trainer.sh /opt/headrace

FROM ${BASE} AS ingest
RUN groupadd --gid 10001 headrace \
    && useradd --uid 10001 --gid headrace --create-home headrace \
    && install -d -o headrace -g headrace /data /checkpoints /var/cache/headrace
COPY --from=ingest-packages /opt/headrace /opt/headrace
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    /opt/headrace/bin/pip install -q --no-cache-dir --no-deps /wheels/*.whl && /opt/headrace/bin/pip check
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1 NUMBA_CACHE_DIR=/var/cache/headrace
USER headrace
# Compiled here, loaded there: on another kind of CPU a container compiles anew, which takes seconds.
RUN python -m headrace.ingest.warm
WORKDIR /data
# The process itself is PID 1 and answers SIGTERM: workers commit, ranks save a checkpoint.
ENTRYPOINT ["headrace"]
CMD ["--help"]

FROM ${TRAINER_BASE} AS trainer
# Paddle links to GNU's OpenMP, which slim images lack
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 headrace \
    && useradd --uid 10001 --gid headrace --create-home headrace \
    && install -d -o headrace -g headrace /data /checkpoints /var/cache/headrace
COPY --from=trainer-packages /opt/headrace /opt/headrace
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    /opt/headrace/bin/pip install -q --no-cache-dir --no-deps /wheels/*.whl
# The last two are what NVIDIA's container runtime asks for; without it nobody reads them.
ENV PATH=/opt/headrace/bin:$PATH PYTHONUNBUFFERED=1 NUMBA_CACHE_DIR=/var/cache/headrace \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER headrace
# Compiled here, loaded there: on another kind of CPU a container compiles anew, which takes seconds.
RUN python -m headrace.ingest.warm
WORKDIR /data
ENTRYPOINT ["headrace"]
CMD ["--help"]
