# weir's commands. `make help` explains them; each installs what it lacks (as root on Debian) or says what to install.
.DEFAULT_GOAL := help
SHELL := /bin/sh
export LC_ALL ?= C.UTF-8

REL := _build/server/rel/weir

.PHONY: help
help: ## this list
	@echo "weir, a rate limiter for the BEAM. Commands:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "HTTP port of run: WEIR_HTTP_PORT (8080). Configuration: config/sys.config, or WEIR_CONFIG=/path/to/some.config"

.PHONY: run
run: ## build the release and run it in the foreground, on http://127.0.0.1:8080 (Ctrl-C stops it)
	@scripts/bootstrap.sh run
	@scripts/release.sh
	@echo "==> starting weir; Ctrl-C stops it"
	@exec $(REL)/bin/weir

.PHONY: cluster
cluster: ## five nodes on this machine, HTTP on 127.0.0.1:8081 to 8085, one limit over all of them (Ctrl-C stops them)
	@scripts/bootstrap.sh run
	@scripts/release.sh
	@exec scripts/cluster.sh

.PHONY: test
test: ## all tests; the last line is "N passed, N failed"
	@scripts/bootstrap.sh test
	@scripts/test.sh

.PHONY: release
release: ## a tarball that runs without Erlang; prints its path
	@scripts/bootstrap.sh run
	@scripts/release.sh tar

.PHONY: build
build: ## compile the application, its NIF, and the lab (bin/weir-lab)
	@scripts/bootstrap.sh run
	@rebar3 compile
	@scripts/build_lab.sh

.PHONY: check
check: ## what CI runs: tests, formats, linters, xref, Dialyzer, sanitizers, fuzzers for a moment
	@scripts/bootstrap.sh check
	@scripts/check.sh

.PHONY: check-long
check-long: ## check, at length: 10,000 cases a property, 10 minutes a fuzzer, the clock, two releases, aarch64, musl, the NIF under ASan, mutants, a soak
	@scripts/bootstrap.sh long
	@scripts/check.sh long

.PHONY: mutants
mutants: ## break weir on purpose, fault by fault, and see whether the tests notice (test/mutants): some half an hour
	@scripts/bootstrap.sh test
	@scripts/mutants.sh

.PHONY: soak
soak: ## five nodes for an hour (SOAK_MINUTES), a million keys, faults all the time: memory, leaks, overshoot
	@scripts/bootstrap.sh test
	@scripts/check.sh soak

.PHONY: bench
bench: ## benchmarks, beside the usual alternatives
	@scripts/bootstrap.sh bench
	@bench/run.sh

.PHONY: lab
lab: ## the lab's runs, figures and page (doc/lab.md): some minutes
	@scripts/bootstrap.sh lab
	@scripts/build_lab.sh
	@bench/lab/run.sh

.PHONY: lab-real
lab-real: ## real nodes beside the lab's simulated ones (doc/lab-real.md): some 20 minutes
	@scripts/bootstrap.sh lab
	@rebar3 compile
	@scripts/build_lab.sh
	@bench/lab/run.sh real

.PHONY: bench-cluster
bench-cluster: ## the cluster of 3, 5 and 10 real nodes, measured (doc/benchmarks-cluster.md): some 40 minutes
	@scripts/bootstrap.sh lab
	@rebar3 compile
	@scripts/build_lab.sh
	@bench/lab/run.sh cluster

.PHONY: fmt
fmt: ## format the C++
	@scripts/bootstrap.sh check
	@scripts/check.sh fmt

.PHONY: lint
lint: ## clang-format and clang-tidy, without changing anything
	@scripts/bootstrap.sh check
	@scripts/check.sh format tidy

.PHONY: xref
xref: ## calls of functions that don't exist
	@scripts/bootstrap.sh check
	@scripts/check.sh xref

.PHONY: dialyzer
dialyzer: ## Erlang's type checker
	@scripts/bootstrap.sh check
	@scripts/check.sh dialyzer

.PHONY: clean
clean: ## remove what was built
	rm -rf _build bin priv/weir_nif.so examples/*/_build
