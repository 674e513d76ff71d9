# Every Go module of this repository by name: `go test ./...` at the root leaves the nested ones out.
MODULES := . bench demo holdfasttest
# Those whose tests need more than Go and a server; each has a target of its own for them.
JAVA_MODULES := interop

# The versions of Redisson that `make interop` tests against: the current one, and an older line.
REDISSON ?= 4.7.0 3.37.0

# The tools of `make check`, each version in this one place. They are installed in .tools and nowhere else.
LINT_VERSION := v2.15.0
LINT := $(CURDIR)/.tools/golangci-lint-$(LINT_VERSION)

# More arguments for the program that a target runs: make test TESTFLAGS='-run=Unlock -v'; make demo ARGS=-h
TESTFLAGS ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-valkey interop soak mutants bench bench-quick bench-summary deps deps-valkey check fmt cover clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: ## see the locks and the stock at work; needs nothing but Go
	@go -C demo run . $(ARGS)

test: deps ## run all tests with the race detector, on a real server
	@race=-race; if [ "$$(go env CGO_ENABLED)" != 1 ] || ! .ci/tools.sh has_cc; then race=; export CGO_ENABLED=0; \
		echo 'make: no C compiler for cgo, so the race detector is off (Debian: apt-get install gcc libc6-dev)'; fi; \
	failed=; for m in $(MODULES); do \
		set -- go -C $$m test $$race -shuffle=on -count=1 $(TESTFLAGS) ./...; echo "$$*"; "$$@" || failed="$$failed $$m"; \
	done; \
	echo 'make: not run here, for it needs Java: make $(JAVA_MODULES)'; \
	[ -z "$$failed" ] || { echo "make: tests failed in:$$failed"; exit 1; }

test-valkey: deps-valkey ## run all tests on valkey-server
	@HOLDFAST_SERVER=valkey-server $(MAKE) --no-print-directory test

interop: deps ## prove with real Redisson that Java and Go share locks; needs Java and Maven, takes about five minutes
	@.ci/tools.sh java
	@jars=; for v in $(REDISSON); do \
		echo "mvn package: the Java program with Redisson $$v"; \
		out=$$(mvn -q -B -Dstyle.color=never -Dredisson.version=$$v -f interop/java/pom.xml package 2>&1) || { echo "$$out"; exit 1; }; \
		jars=$$jars:java/target/$$v/participant.jar; \
	done; \
	set -- go -C interop test -count=1 -parallel 3 -timeout 20m $(TESTFLAGS); echo "$$*"; \
	HOLDFAST_REDISSON=$${jars#:} HOLDFAST_STORM=$${HOLDFAST_STORM:-60s} "$$@"

bench: deps ## compare with other libraries, for 12 to 15 minutes, and write docs/benchmarks.md
	@if command -v java >/dev/null && command -v mvn >/dev/null && \
		mvn -q -B -Dstyle.color=never -Dredisson.version=$(firstword $(REDISSON)) -f interop/java/pom.xml package; then \
		export HOLDFAST_REDISSON=$(CURDIR)/interop/java/target/$(firstword $(REDISSON))/participant.jar; \
	else echo 'make: no Java, no Maven, or no Redisson from it: Redisson is not measured'; fi; \
	go -C bench run ./runner $(ARGS)

bench-quick: deps ## compare a part of it, for a minute or two, and print it
	@go -C bench run ./runner -quick $(ARGS)

bench-summary: ## print a line for each workload of the last `make bench`
	@go -C bench run ./runner -summary $(ARGS)

deps: ## install a server for the tests, unless there is one
	@.ci/tools.sh server

deps-valkey: ## install valkey-server, unless it is there
	@.ci/tools.sh valkey

soak: deps ## ten minutes of cancels and faults; memory and goroutines must stay flat
	HOLDFAST_SOAK=$${HOLDFAST_SOAK:-10m} go test -race -count=1 -timeout 30m -run '^TestStorm$$' -v ./reentrant

mutants: deps ## spoil the library in many ways and see that the tests notice each
	@go run ./internal/mutants $(ARGS)

check: $(LINT) ## run the linters, and see that code is formatted and go.mod tidy
	@failed=; step() { echo "$$*"; "$$@" || failed="$$failed$$(printf '\n  %s' "$$*")"; }; \
	format() { $(LINT) fmt --diff; }; \
	lint() { (cd "$$1" && $(LINT) run --config $(CURDIR)/.golangci.yaml); }; \
	step format; \
	for m in $(MODULES) $(JAVA_MODULES); do \
		step go -C $$m vet ./...; \
		step lint $$m; \
		step go -C $$m mod tidy -diff; \
	done; \
	for m in $$(find . -mindepth 2 -name go.mod -not -path '*/.*/*' -exec dirname {} +); do \
		case ' $(MODULES) $(JAVA_MODULES) ' in *" $${m#./} "*) ;; *) failed="$$failed$$(printf '\n  %s is in neither MODULES nor JAVA_MODULES of the Makefile' "$${m#./}")";; esac; \
	done; \
	[ -z "$$failed" ] || { echo "make: failed:$$failed"; exit 1; }

fmt: $(LINT) ## format all code, and tidy every go.mod
	$(LINT) fmt
	@for m in $(MODULES) $(JAVA_MODULES); do go -C $$m mod tidy; done

cover: deps ## measure which code the root module's tests run
	go test -count=1 -coverpkg=./... -coverprofile=coverage.out ./...
	go tool cover -func=coverage.out | tail -n 1
	@echo 'make: line by line: go tool cover -html=coverage.out'

clean: ## remove what the other targets made
	rm -rf .tools coverage.out interop/java/target

$(LINT):
	@echo 'make: building golangci-lint $(LINT_VERSION) in .tools, which takes minutes the first time'
	@GOBIN=$(CURDIR)/.tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	@mv .tools/golangci-lint $@
