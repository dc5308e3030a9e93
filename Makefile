# `make help` lists the targets. Every one of them first makes .venv, or finds it up to date.
# ARGS="…" goes to the command behind a target: make test ARGS="tests/unit -k window"

VENV := .venv
PY := $(VENV)/bin/python
JOBS ?= 3
UV_VERSION := 0.13.9
COMPILE = $(VENV)/tools/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-header --no-annotate --quiet $(UPGRADE)
STAGE = pyproject.toml --extra hdfs --extra oss --extra s3 --extra words

.DEFAULT_GOAL := help
.PHONY: help setup demo test parity lint format kafka reference bench bench-tokenizer requirements

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv from requirements/dev.txt (PYTHON=… chooses the interpreter)
	@PYTHON='$(PYTHON)' requirements/venv.sh

demo: setup ## publish, ingest and train here, with no broker and no GPU
	$(VENV)/bin/headrace demo $(ARGS)

test: setup ## run the tests, JOBS (3) files at a time: most of them wait for processes
	$(PY) -m headrace.ingest.warm
	$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

parity: setup ## compare the tokenizer with PaddleNLP's on millions of texts (an hour; ARGS="--every 50" for a share)
	$(PY) -m tests.parity $(ARGS)

lint: setup ## ruff, its formatter, and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: setup ## let ruff rewrite what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

kafka: setup ## a Kafka broker on 127.0.0.1:9092 until Ctrl-C (needs Java and Maven)
	$(PY) -m tests.services.kafka_broker --port 9092 --data data/kafka $(ARGS)

reference: setup ## write docs/configuration.md, docs/commands.md and the JSON Schema from the code
	$(PY) -m headrace.schema
	$(PY) -m headrace.reference docs

bench: setup ## measure (see bench/)
	$(PY) -m bench $(ARGS)

bench-tokenizer: setup ## measure the tokenizer beside UTF-8 decoding and other tokenizers
	$(PY) -m bench.tokenizer_rate $(ARGS)

requirements: setup ## pin pyproject.toml's dependencies again (UPGRADE=--upgrade for newer ones)
	$(PY) -m venv $(VENV)/tools
	$(VENV)/tools/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(COMPILE) $(STAGE) --extra cpu --extra export --extra dev --extra bench --group build -o requirements/dev.txt
	$(COMPILE) $(STAGE) --extra cpu --extra export -c requirements/dev.txt -o requirements/trainer.txt
	$(COMPILE) $(STAGE) -c requirements/dev.txt -o requirements/ingest.txt
	$(COMPILE) --group build -c requirements/dev.txt -o requirements/build.txt
