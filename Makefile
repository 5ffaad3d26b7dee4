# Needs a Rust toolchain. A Redis (or Valkey) server of version 7 or later is used where there is one;
# else scripts/get-server brings one into target/server, without root and without starting anything.

SHELL := /bin/bash
CARGO ?= cargo
# Found when a recipe first needs it.
SERVER = $$(scripts/get-server)
WITH_SERVER = set -e; server=$(SERVER); export MINUTEHAND_REDIS_SERVER="$$server";

.PHONY: demo test cases fuzz bench bench-peers flame chaos chaos-cluster chaos-sentinel chaos-valkey e2e-cluster e2e-sentinel e2e-valkey \
	lint docs server help

help:
	@echo 'make demo    watch a real plan of 1,014 pushes run'
	@echo 'make test    all tests, each on private servers of its own'
	@echo 'make chaos   break everything under load for CHAOS_SECONDS (300) and judge every task'
	@echo 'make chaos-cluster, chaos-sentinel, chaos-valkey    the same there, for 60 s; CHAOS_WAIT=0 counts what is lost'
	@echo 'make e2e-cluster, e2e-sentinel, e2e-valkey          the program end to end on each of them'
	@echo 'make cases   trials of full size: millions of tasks, some minutes and 2 GiB'
	@echo 'make fuzz    each decoder under libFuzzer for FUZZ_SECONDS (60); FUZZ="spec journal" for some'
	@echo 'make bench   what a task costs, beside the floor; BENCH="lifecycle --rounds 3" for one of them'
	@echo 'make bench-peers  the same work by other schedulers, installed under target/peers; PEERS="--only bullmq"'
	@echo 'make flame   where the server'"'"'s time goes, as life.svg; needs perf'
	@echo 'make lint    formatting and clippy, warnings denied'
	@echo 'make docs    documentation of the crate, warnings denied'
	@echo 'make server  print the path of the Redis server that all of these use'

demo:
	@$(CARGO) build --bin minutehand
	@$(WITH_SERVER) $(CARGO) run --quiet -- demo

# Tests that need Python say so and are left out where there is none.
test:
	@$(WITH_SERVER) scripts/get-python >/dev/null || true; MINUTEHAND_VALKEY_SERVER=$$(scripts/get-server --valkey || true); export MINUTEHAND_VALKEY_SERVER; \
	if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(CARGO) test --quiet --features testing --doc && \
		$(CARGO) nextest run --features testing $(TEST); \
	else \
		$(CARGO) test --features testing $(TEST); \
	fi

chaos:
	@$(WITH_SERVER) MINUTEHAND_CHAOS_SECONDS=$${CHAOS_SECONDS:-300} $(CARGO) test --features testing --test chaos \
		-- --exact chaos --nocapture

# The same on a cluster, on a master with sentinels, and on a Valkey. CHAOS_WAIT=0 submits without waiting for a
# replica, and counts what a lost master takes with it.
chaos-cluster chaos-sentinel chaos-valkey: chaos-%:
	@$(WITH_SERVER) MINUTEHAND_VALKEY_SERVER=$$(scripts/get-server --valkey || true) \
		MINUTEHAND_CHAOS_SECONDS=$${CHAOS_SECONDS:-60} MINUTEHAND_CHAOS_WAIT=$${CHAOS_WAIT:-1} \
		$(CARGO) test --features testing --test chaos -- --exact chaos_$* --include-ignored --nocapture

# The program end to end on each of them.
e2e-cluster e2e-sentinel: e2e-%:
	@$(WITH_SERVER) MINUTEHAND_E2E_ON=$* $(CARGO) nextest run --no-fail-fast --features testing -E 'binary(e2e)'

e2e-valkey:
	@set -e; server=$$(scripts/get-server --valkey); export MINUTEHAND_REDIS_SERVER="$$server"; \
		$(CARGO) nextest run --no-fail-fast --features testing -E 'binary(e2e)'

# Trials of full size that the tests make with fewer tasks.
cases:
	@$(WITH_SERVER) $(CARGO) nextest run --no-fail-fast --success-output final --features testing --run-ignored ignored-only \
		-E 'binary(e2e) | binary(it)'

# Needs cargo-fuzz (`cargo install cargo-fuzz`) and a nightly toolchain. It begins with what is well formed, and keeps in
# fuzz/corpus what led further; what breaks a decoder lies in fuzz/artifacts. FUZZ_FLAGS=--dev builds faster and runs slower.
FUZZ = spec offer event journal outcome import
fuzz:
	@MINUTEHAND_FUZZ_CORPUS="$(CURDIR)/fuzz/corpus" $(CARGO) test --quiet --features testing --test fuzz each_target_has_its_fuzzer
	@set -e; for target in $(FUZZ); do \
		$(CARGO) +nightly fuzz run $(FUZZ_FLAGS) $$target -- -max_total_time=$${FUZZ_SECONDS:-60} -rss_limit_mb=1024 -timeout=30; \
	done

bench:
	@$(WITH_SERVER) $(CARGO) bench --features testing --bench bench -- $(BENCH)

# By hand: it fetches the others from their package registries.
bench-peers:
	@$(WITH_SERVER) $(CARGO) bench --features testing --bench bench -- peers $(PEERS)

flame:
	@scripts/flame life.svg redis-server $${BENCH:-lifecycle --rounds 3 --no-speed}

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets --features testing -- -D warnings

docs:
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps

server:
	@scripts/get-server
