# make help lists what there is.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory

# Where Go is often installed without being on the PATH.
export PATH := $(PATH):/usr/local/go/bin

# What can be set on the command line, for instance: make fuzz PKG=./header FUZZTIME=1m
PKG ?= github.com/holdfast-go/holdfast/...
FUZZTIME ?= 10s
BENCH ?= .
BENCHTIME ?= 1s
COUNT ?= 1
BASE ?= origin/main
LAST ?= test
export BASE
SUITE ?= trixie
RUN ?=
# As it was written: a pattern such as ^TestName$/sub is no variable of make.
override RUN := $(value RUN)
# The race detector: -race, or empty. make test-race and make unit have it, and so has .ci/run for every test but those of
# make test-faults, most of which start processes. It costs 70 % more CPU, and a contributor runs make test often.
RACE ?=
export RACE
# The packages that take longest begin first.
FIRST = ./endpoint/acceptance ./transport/rabbitmq ./endpoint ./cmd/holdfast ./transport/postgres ./transport/sqs ./transport/sqlite \
	./internal/brokertest ./transport/asb
PACKAGES = $(if $(filter github.com/holdfast-go/holdfast/...,$(PKG)),$(FIRST)) $(PKG)

# Makes the brokers' URLs known to what follows. Apart from eval, so that a failure is seen.
WITH_BROKERS = urls=$$(scripts/brokers.sh up); eval "$$urls"
# How many packages are tested beside each other. Most of them wait rather than compute, each test on a virtual host, a database or
# a node of its own.
BESIDE ?= 3
# Packages one at a time, where tests load a broker and all cores.
ONE_BY_ONE = -count=1 -p=1
# The tests that RUN names, if any.
ONLY = $(if $(RUN),-run='$(RUN)')
# The modules of go.work. What looks at one module by itself runs without the workspace.
MODULES = . bench cmd/holdfast drivertests examples
EACH_MODULE = export GOWORK=off; for module in $(MODULES); do cd '$(CURDIR)'/$$module;
LINT = go tool -modfile='$(CURDIR)'/tools/go.mod golangci-lint

.PHONY: help
help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: bin/holdfast ## Builds the command and works through a file of orders on the embedded queue
	bin/holdfast demo --input examples/orders.jsonl

.PHONY: check
check: lint ## What needs neither a broker nor a C compiler: lint and short tests, within 90 s once all is compiled
	$(MAKE) unit RACE=

.PHONY: unit
unit: RACE = -race
unit: go ## The tests that need no broker, with -race
	scripts/test.sh unit 'make unit' pkgname '$(PACKAGES)' -short -p=$(BESIDE) -timeout=20m $(ONLY)

.PHONY: test
test: go ## All that must hold at every commit, on real brokers; installs and starts what is missing
	scripts/test.sh test 'make test$(if $(RACE), RACE=$(RACE))' pkgname '$(PACKAGES)' -count=1 -p=$(BESIDE) -timeout=20m $(ONLY)

.PHONY: test-race
test-race: ## make test with -race
	$(MAKE) test RACE=-race

.PHONY: touched
touched: go ## Before a commit: lint, and the tests of what differs from BASE (origin/main) and of its importers without brokers
	scripts/touched.sh

.PHONY: testtime
testtime: ## The slowest packages and tests of the last run; LAST=test-faults for those of make test-faults
	.tmp/testreport packages .tmp/$(LAST).json | head -n 25
	.tmp/gotestsum tool slowest --jsonfile .tmp/$(LAST).json --threshold 2s | head -n 100

# The tests that call brokertest.Fault, and their packages.
FAULT_TESTS = $(or $(RUN),^TestChaos)
FAULT_FIRST = ./endpoint/acceptance ./cmd/holdfast ./internal/baddays ./transport/asb ./transport/rabbitmq
FAULT_PACKAGES = $(if $(findstring ...,$(PKG)),$(FAULT_FIRST) $(shell grep -rl --include='*_test.go' '^func TestChaos' . | xargs -n 1 dirname | sort -u),$(PKG))
SIZE ?= full
# The short form waits for leases and outages most of the time.
FAULTS_BESIDE ?= 4
FAULT_LIMITS = $(if $(filter short,$(SIZE)),-p=$(FAULTS_BESIDE) -parallel=6 -timeout=30m,-p=1 -timeout=2h)

.PHONY: test-faults
test-faults: go ## Kills, restarts, torture, pgbouncer, old versions, bad days: SIZE=short is what CI runs, full (the default) takes hours
	HOLDFAST_FAULTS=$(SIZE) scripts/test.sh test-faults 'make test-faults SIZE=$(SIZE)' testname '$(FAULT_PACKAGES)' -count=1 $(FAULT_LIMITS) -run='$(FAULT_TESTS)'
	$(if $(RUN)$(filter short,$(SIZE)),,HOLDFAST_TEST_SERVICEBUS= $(MAKE) test-azure PROFILE='$(PROFILES)')

.PHONY: bench-faults
bench-faults: go ## Rates during bad days, each beside an undisturbed run of the same minute
	$(WITH_BROKERS); go test -run='^$$' -bench='$(BENCH)' -benchtime=1x -count=$(COUNT) -timeout=1h ./internal/baddays

.PHONY: test-mssql
test-mssql: go compiler ## SQL Server: the dialect's and the conformance suite on the server that HOLDFAST_TEST_MSSQL names
	: "$${HOLDFAST_TEST_MSSQL:?is not set: start a server by docker compose --profile mssql up --wait, and see compose.yaml for its URL}"
	CGO_ENABLED=1 go test -race -tags=mssql $(ONE_BY_ONE) -timeout=30m ./transport/sqlserver

# What standard queues promise nothing about: order, and how many messages they hold at the moment.
NOT_AT_AWS = (dispatch-order|publish-order|concurrency-one|dispatch-partly|inspect|browse)$$

.PHONY: test-aws
test-aws: go compiler ## Amazon SQS and SNS: the driver's suite on AWS itself, in the region that HOLDFAST_TEST_AWS names; it costs some cents
	: "$${HOLDFAST_TEST_AWS:?is not set: name a region; credentials come from where the AWS tools look for them}"
	CGO_ENABLED=1 go test -race -tags=aws $(ONE_BY_ONE) -parallel=8 -timeout=1h -run=AWS -skip='TestConformanceOnAWS//$(NOT_AT_AWS)' ./transport/sqs

# The rules that the tests of Service Bus run by: those of the stand-in in internal/brokertest/servicebus, or of the namespace or
# emulator that HOLDFAST_TEST_SERVICEBUS names.
HOLDFAST_TEST_SERVICEBUS ?=
PROFILE ?= $(if $(HOLDFAST_TEST_SERVICEBUS),$(if $(findstring UseDevelopmentEmulator=true,$(HOLDFAST_TEST_SERVICEBUS)),emulator,azure),azure $(PROFILES))
PROFILES = emulator links-uncounted links-counted
# What a profile does not promise: delivery limits over 10; locks that are still good when their link has ended, and a delivery
# count that rises by one when a link ends.
NOT_AT_azure =
NOT_AT_emulator = TestServiceBusEndsEachMessageOnce
NOT_AT_links-uncounted = TestServiceBusKeepsLocksOverTheEndOfALink|TestConformance/^(lease-expires|fault-stale|attempts-closed|receive-closed-settle|receive-closed-returns)$$
NOT_AT_links-counted = $(NOT_AT_links-uncounted)

.PHONY: test-azure
test-azure: $(PROFILE:%=test-azure-%) ## Azure Service Bus: the suites of the broker and the driver on the namespace of HOLDFAST_TEST_SERVICEBUS, else on the stand-in by each PROFILE

# The emulator lets ten connections in, so one test at a time.
test-azure-%: go compiler
	HOLDFAST_TEST_SERVICEBUS_PROFILE=$* CGO_ENABLED=1 go test -race $(ONE_BY_ONE) -parallel=1 -timeout=1h -run=ServiceBus -skip='$(NOT_AT_$*)' ./internal/brokertest
	HOLDFAST_TEST_SERVICEBUS_PROFILE=$* CGO_ENABLED=1 go test -race $(ONE_BY_ONE) -parallel=1 -timeout=1h -skip='$(NOT_AT_$*)' ./transport/asb

.PHONY: test-rabbitmq
test-rabbitmq: go compiler ## RabbitMQ of another Debian suite: SUITE=trixie has 4.0, sid what is newest
	CGO_ENABLED=1 scripts/rabbitmq-version.sh $(SUITE) go test -race $(ONE_BY_ONE) -timeout=30m ./internal/brokertest ./transport/rabbitmq ./endpoint/acceptance ./cmd/holdfast
	CGO_ENABLED=1 HOLDFAST_FAULTS=short scripts/rabbitmq-version.sh $(SUITE) go test -race $(ONE_BY_ONE) -timeout=30m -run='^TestChaosDaysOfRabbitMQ$$' ./internal/baddays

.PHONY: test-postgres
test-postgres: go compiler ## PostgreSQL of another Debian suite: SUITE=trixie has 17, sid the newest
	CGO_ENABLED=1 scripts/postgres-version.sh $(SUITE) go test -race $(ONE_BY_ONE) -timeout=30m ./internal/brokertest ./transport/postgres
	CGO_ENABLED=1 HOLDFAST_FAULTS=short scripts/postgres-version.sh $(SUITE) go test -race $(ONE_BY_ONE) -timeout=30m -run='^TestChaosDaysOfPostgreSQL$$' ./internal/baddays

.PHONY: soak
soak: go compiler ## The tests with their long runs: kills, cut connections, hours of load
	$(WITH_BROKERS); HOLDFAST_SOAK=1 CGO_ENABLED=1 go test -race $(ONE_BY_ONE) -timeout=6h $(PKG)

.PHONY: bench
bench: go ## The Go benchmarks: BENCH=pattern BENCHTIME=1s COUNT=1; compare runs with benchstat
	$(WITH_BROKERS); go test -run='^$$' -bench='$(BENCH)' -benchtime=$(BENCHTIME) -benchmem -count=$(COUNT) -p=1 -timeout=1h $(PKG)

.PHONY: fuzz
fuzz: go ## Every fuzz target for FUZZTIME (10s)
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh $(PKG)

.PHONY: cover
cover: go ## How much of the code the tests run; the page is .tmp/cover.html
	mkdir -p .tmp
	$(WITH_BROKERS); go test $(ONE_BY_ONE) -timeout=15m -coverpkg=github.com/holdfast-go/holdfast/... -coverprofile=.tmp/cover.out $(ONLY) $(PKG)
	go tool cover -html=.tmp/cover.out -o .tmp/cover.html
	go tool cover -func=.tmp/cover.out | tail -n 1

.PHONY: lint
lint: go ## go vet, the linters of .golangci.yml, formatting, the syntax of the scripts, and the bars of the structure
	for script in scripts/*.sh .ci/run; do bash -n "$$script"; done
	scripts/words.sh
	$(EACH_MODULE) go vet ./...; go mod tidy -diff; $(LINT) run; $(LINT) fmt --diff; done
	go vet -tags=mssql ./transport/...
	go vet -tags=aws ./transport/sqs
	go run ./scripts/house check $(HOUSE)

# The packages whose structure has bars.
HOUSE = ./... ./cmd/holdfast/...

.PHONY: house
house: go ## Records the figures of the structure that have fallen, and counts the functions that one message enters
	go run ./scripts/house update $(HOUSE)
	git --no-pager diff --stat -- scripts/house.txt
	go build -cover -covermode=atomic -coverpkg=github.com/holdfast-go/holdfast/... -o .tmp/walk ./scripts/house/walk
	$(WITH_BROKERS); mkdir -p .tmp/walked; export GOCOVERDIR=.tmp/walked; for outbox in false true; do .tmp/walk -outbox=$$outbox -postgres "$$HOLDFAST_TEST_POSTGRES"; done

.PHONY: fmt
fmt: go ## Formats the code as lint wants it
	$(EACH_MODULE) $(LINT) fmt; done

.PHONY: brokers-up
brokers-up: go ## Finds or starts RabbitMQ and PostgreSQL; prints their URLs as shell exports
	@scripts/brokers.sh up

.PHONY: brokers-down
brokers-down: ## Stops the brokers that were started here, and no others
	@scripts/brokers.sh down

# No cgo: the command runs on any machine of the same system. Always built, go knows best
# whether there is something to do.
.PHONY: bin/holdfast
bin/holdfast: go
	CGO_ENABLED=0 go build -trimpath -o $@ ./cmd/holdfast

.PHONY: go
go:
	@scripts/go-version.sh

.PHONY: compiler
compiler: go
	@scripts/compiler.sh
