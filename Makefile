# Needs a Rust toolchain. A Redis (or Valkey) server of version 7 or later is used where there is one;
# else scripts/get-server brings one into target/server, without root and without starting anything.

SHELL := /bin/bash
CARGO ?= cargo
# Found when a recipe first needs it.
SERVER = $$(scripts/get-server)
WITH_SERVER = set -e; server=$(SERVER); export MINUTEHAND_REDIS_SERVER="$$server";

.PHONY: demo test bench bench-peers chaos lint docs server help

help:
	@echo 'make demo    watch a real plan of 1,014 pushes run'
	@echo 'make test    all tests, each on private servers of its own'
	@echo 'make chaos   break everything under load for CHAOS_SECONDS (300) and judge every task'
	@echo 'make bench   what a task costs, beside the floor; BENCH="lifecycle --rounds 3" for one of them'
	@echo 'make bench-peers  the same work by other schedulers, installed under target/peers; PEERS="--only bullmq"'
	@echo 'make lint    formatting and clippy, warnings denied'
	@echo 'make docs    documentation of the crate, warnings denied'
	@echo 'make server  print the path of the Redis server that all of these use'

demo:
	@$(CARGO) build --bin minutehand
	@$(WITH_SERVER) $(CARGO) run --quiet -- demo

test:
	@$(WITH_SERVER) if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(CARGO) test --quiet --features testing --doc && \
		$(CARGO) nextest run --features testing $(TEST); \
	else \
		$(CARGO) test --features testing $(TEST); \
	fi

chaos:
	@$(WITH_SERVER) MINUTEHAND_CHAOS_SECONDS=$${CHAOS_SECONDS:-300} $(CARGO) test --features testing --test chaos \
		-- --exact chaos --nocapture

bench:
	@$(WITH_SERVER) $(CARGO) bench --features testing --bench bench -- $(BENCH)

# By hand: it fetches the others from their package registries.
bench-peers:
	@$(WITH_SERVER) $(CARGO) bench --features testing --bench bench -- peers $(PEERS)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets --features testing -- -D warnings

docs:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps

server:
	@scripts/get-server
