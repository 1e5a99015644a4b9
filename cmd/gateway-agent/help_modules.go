package main

const wasmHelp = `Commands for the store of Wasm modules that 'run' uses. All work without Envoy.`

const pullHelp = `Pull fetches modules into the store, checks them and keeps them: afterwards 'run' needs no registry for them.

A reference is oci://host/repo:tag, oci://host/repo@sha256:…, https://… or http://…. Credentials come from the
docker config (~/.docker/config.json, or $DOCKER_CONFIG). Only registries on loopback are spoken to in plain HTTP.

Progress bars are drawn on a terminal, plain lines otherwise; -o json prints one object for scripts.
Exit codes: 0 every module came and passed; 1 at least one did not; 2 bad usage.`

const pullExample = `  gateway-agent wasm pull oci://ghcr.io/acme/waf:v3
  gateway-agent wasm pull --data-dir /var/lib/gateway-agent -o json oci://registry.example.com/a:1 oci://registry.example.com/b:2`
