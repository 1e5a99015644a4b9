GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS  := -s -w -X main.version=$(VERSION) -X main.revision=$(REVISION)
# gRPC's request tracing keeps the linker from dropping what nobody calls: 7 MiB of binary, 4 MiB of memory.
TAGS     := grpcnotrace
# The compiler takes memory for time.
COMPILE  := GOGC=300 CGO_ENABLED=0 $(GO)
# As in the Dockerfile, so that the image has the same bytes. All that is built without -race has the first three, and no cgo: so most of it
# is compiled once.
PLAIN    := -trimpath -buildvcs=false -tags $(TAGS)
BUILD    := $(PLAIN) -ldflags '$(LDFLAGS)'
LINT     := $(GO) tool -modfile=tools/lint/go.mod
PKGS      = $(shell $(GO) list ./... 2>/dev/null | grep -v /e2e)

.PHONY: build
build: ## the agent, as ./gateway-agent
	$(COMPILE) build $(BUILD) -o gateway-agent ./cmd/gateway-agent

.PHONY: demo
demo: build tools ## remote Wasm into a real Envoy on this machine; ONCE=1 checks it and exits
	@$(COMPILE) build $(PLAIN) -o .tools/demo ./examples/demo
	@exec .tools/demo $(if $(ONCE),-once)

.PHONY: test
test: ## everything: unit tests with -race, then a real Envoy, registry and plugins
	@$(MAKE) --no-print-directory -j2 unit beside
	$(GO) run ./tools/e2e

# What only the end-to-end suite needs is fetched and compiled in the time that the unit tests leave; nothing heavy runs beside that suite. vet
# looks at everything at once here: for each test it would look at all that is imported again.
.PHONY: beside
beside: build tools
	@nice -n 19 $(MAKE) --no-print-directory envoys istio .tools/image
	@nice -n 19 env $(COMPILE) vet $(PLAIN) ./...
	@nice -n 19 env $(COMPILE) test -c $(PLAIN) -o /dev/null ./e2e

.PHONY: unit
unit: tools
	$(GO) test -race -vet=off -shuffle=on $(PKGS)

.PHONY: e2e
e2e: build tools envoys istio .tools/image
	$(GO) run ./tools/e2e

.PHONY: check
check: tools fmt-check vet lint tidy-check cross unit ## the quick gate

.PHONY: fmt
fmt: ## format the tree
	$(LINT) gofumpt -w $$(git ls-files '*.go')

.PHONY: fmt-check
fmt-check:
	@out=$$($(LINT) gofumpt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "not formatted (make fmt):"; echo "$$out"; exit 1; }

.PHONY: vet
vet:
	$(GO) vet ./...
	@out=$$($(GO) fix -stringsbuilder=false -diff ./... 2>&1); [ -z "$$out" ] || { echo "$$out"; exit 1; }

.PHONY: lint
lint:
	$(LINT) golangci-lint run ./...

.PHONY: tidy-check
tidy-check:
	$(GO) mod tidy -diff

.PHONY: cross
cross: ## what must build elsewhere
	GOOS=linux GOARCH=arm64 $(COMPILE) build $(BUILD) -o /dev/null ./cmd/gateway-agent
	GOOS=darwin GOARCH=arm64 $(COMPILE) build -o /dev/null ./cmd/gateway-agent

.PHONY: bench
bench: tools ## benchmarks, ratios side by side; they say which figure is beyond its limit (BENCH=Pull: those alone)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

BENCH    ?= .
FUZZTIME ?= 60s
FUZZPKGS ?= ./...
.PHONY: fuzz
fuzz: ## every fuzz test for FUZZTIME each (of FUZZPKGS)
	@GO=$(GO) tools/fuzz/run $(FUZZTIME) $(FUZZPKGS)

.PHONY: fuzz-modules
fuzz-modules: ## what strangers' modules and registries' files go through, for a short time: a part of CI
	@FUZZCACHE=none $(MAKE) --no-print-directory fuzz FUZZPKGS='./wasmcache/... ./internal/oci/... ./internal/lockfile'

.PHONY: tools
tools: .tools/registry
	@ENVOY=$(ENVOY) tools/envoy/install

.PHONY: envoys
envoys: ## more versions of Envoy, for the end-to-end suite
	@tools/envoy/install versions

.tools/registry: tools/registry/go.mod tools/registry/main.go
	@mkdir -p .tools
	$(COMPILE) -C tools/registry build $(PLAIN) -ldflags '-s -w' -o ../../.tools/registry .

# The real istiod and pilot-agent, from source: minutes of compiling the first time, and less of it without optimization, debugging
# information and, as in Istio's own build, validators. Only the end-to-end suite needs them.
.PHONY: istio
istio: .tools/istio/pilot-discovery

.tools/istio/pilot-discovery: tools/istio/go.mod
	@mkdir -p .tools/istio
	@$(GO) -C tools/istio mod download istio.io/istio
	@install -m 644 "$$($(GO) -C tools/istio list -m -f '{{.Dir}}' istio.io/istio)/tools/packaging/common/envoy_bootstrap.json" .tools/istio/envoy_bootstrap_tmpl.json
	$(COMPILE) -C tools/istio build -trimpath -buildvcs=false -tags disable_pgv -gcflags=all='-N -l -dwarf=false' -ldflags '-s -w' -o ../../.tools/istio \
	  istio.io/istio/pilot/cmd/pilot-agent istio.io/istio/pilot/cmd/pilot-discovery

IMAGE       ?= gateway-agent:$(VERSION)
PLATFORMS   ?= linux/amd64,linux/arm64
ENVOY_IMAGE ?= $(shell sed -n 's/^ARG ENVOY=//p' Dockerfile)
IMAGE_TO    := type=oci,dest=gateway-agent.oci.tar
ifdef PUSH
IMAGE_TO    := type=image,push=true
endif
.PHONY: image
image: ## by docker buildx, as gateway-agent.oci.tar; PUSH=1 IMAGE=registry.example.com/gateway-agent:v1 sends it there; ENVOY_IMAGE=… is its base
	docker buildx build --platform $(PLATFORMS) --provenance=false --build-arg ENVOY=$(ENVOY_IMAGE) \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) --build-arg SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	  --output $(IMAGE_TO),name=$(IMAGE),rewrite-timestamp=true .

.PHONY: image-check
image-check: build tools .tools/image ## the Dockerfile on stand-ins for its bases, without a daemon or a network, and a gateway pod from it
	$(GO) run ./tools/e2e -run Image

.PHONY: .tools/image
.tools/image: build tools
	@GO=$(GO) VERSION='$(VERSION)' REVISION='$(REVISION)' tools/image/build

.PHONY: help
help:
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12
