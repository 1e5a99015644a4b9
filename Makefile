GO ?= go

.PHONY: tools
tools: .tools/registry
	@tools/envoy/install

.tools/registry: tools/registry/go.mod
	@mkdir -p .tools
	$(GO) -C tools/registry build -o ../../.tools/registry github.com/distribution/distribution/v3/cmd/registry
