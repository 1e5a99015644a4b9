package main

const wasmHelp = `Commands for Wasm modules and the store in --data-dir that 'run' uses. All work without Envoy.

  pull      fetch modules into the store         list     what is in the store, and which plugins use it
  push      make an image of a .wasm file        inspect  what a module and its image are
  export    write an OCI layout                  verify   hash everything
  import    read one into the store              prune    remove what nothing uses

A reference is oci://host/repository:tag, oci://host/repository@sha256:…, https://… or http://….
docs/modules.md has formats, credentials, mirrors, lockfiles and sites without a network.`

const moduleExits = `

Exit codes: `

const pullHelp = `Pull fetches modules into the store, checks them and keeps them: afterwards 'run' needs no registry for them. What
the store has is not fetched again; --always asks whether a tag has moved.

--lockfile FILE writes down which contents the references have now. Later, --frozen takes exactly these: no registry is
asked what a tag means, and a reference that FILE lacks fails. Without REF and --from, all references of FILE are pulled.
--from DIR pulls what a configuration directory names; the lockfile then gets exactly these references.

Credentials come from the docker or podman configuration, credential helpers and the kubelet's credential providers.
Progress bars are drawn on a terminal; -o json prints one object for scripts.` + moduleExits +
	`0 every module came and passed; 1 at least one did not, the others are there; 2 bad usage.`

const pullExample = `  gateway-agent wasm pull oci://ghcr.io/acme/waf:v3
  gateway-agent wasm pull --from /etc/edge --lockfile modules.lock              # write the lockfile, or bring it up to date
  gateway-agent wasm pull --from /etc/edge --lockfile modules.lock --frozen     # in CI, or as an init container
  gateway-agent wasm pull -o json --data-dir /var/lib/gateway-agent oci://registry.example.com/a:1 oci://registry.example.com/b:2`

const listHelp = `List shows the modules in the store with size, last use, references and what the checker found wrong. When an agent runs in
--run-dir, its plugins follow: which digest is live, which is wanted, and why it is not there. -q prints digests only.` + moduleExits +
	`0 done; 1 the store cannot be read; 2 bad usage.`

const listExample = `  gateway-agent wasm list
  gateway-agent wasm ls -o json | jq -r '.store.modules[] | select(.pinned) | .digest'`

const inspectHelp = `Inspect says what a module is: the verdict of the checker, imports and exports, ABI version, memory, who made it, what its
sections weigh; and, for a reference, its image: manifest, annotations, layers. The registry is asked; a module that is not in the
store is downloaded for a look and not kept. A DIGEST, or the beginning of one, names a module in the store.` + moduleExits +
	`0 the module is good, or the checker cannot say; 1 Envoy cannot run it, or it cannot be had; 2 bad usage.`

const inspectExample = `  gateway-agent wasm inspect oci://ghcr.io/acme/waf:v3
  gateway-agent wasm inspect --envoy-version 1.36.0 ./target/wasm32-wasip1/release/waf.wasm
  gateway-agent wasm inspect 2f0c1a77 -o json | jq .module.imports`

const pushHelp = `Push makes an OCI image of a .wasm file, reproducibly, and pushes it. A module that Envoy would reject or die of is refused.

--variant compat    an ordinary image with plugin.wasm in its only layer: every registry and tool takes it
--variant artifact  an artifact with the bare module as a layer: smaller, but some registries refuse it` + moduleExits +
	`0 pushed; 1 refused or failed; 2 bad usage.`

const pushExample = `  gateway-agent wasm push ./waf.wasm oci://ghcr.io/acme/waf:v3
  gateway-agent wasm push --annotation org.opencontainers.image.source=https://github.com/acme/waf ./waf.wasm ghcr.io/acme/waf:v3`

const exportHelp = `Export writes modules into an OCI layout, a directory or a .tar file, which 'wasm import' and other tools read. Images are copied
byte for byte, so digests stay. Where the image cannot be had (https://, a registry that is down), the module is packed from the store,
under its reference but without the image's digest. What is at PATH is replaced at the end, or not at all.` + moduleExits +
	`0 all modules are in the layout; 1 at least one is not; 2 bad usage.`

const exportExample = `  gateway-agent wasm export --to modules.tar oci://ghcr.io/acme/waf:v3 oci://ghcr.io/acme/jwt:v1
  gateway-agent wasm export --to modules.tar --lockfile modules.lock`

const importHelp = `Import puts the modules of an OCI layout, a directory or a .tar file, into the store, under their references: 'run' then needs no
registry for them. Every byte is checked against its digest. An image without a complete reference, as some tools write it, is named
with DIGEST=REF. With --lockfile only what that file says is accepted.` + moduleExits +
	`0 every module came and passed; 1 at least one did not; 2 bad usage.`

const importExample = `  gateway-agent wasm import modules.tar
  gateway-agent wasm import --lockfile modules.lock modules.tar
  gateway-agent wasm import ./layout sha256:4be8…=oci://ghcr.io/acme/waf:v3`

const verifyHelp = `Verify hashes every module in the store. A damaged one is set aside, and pulled again when it is needed.` + moduleExits +
	`0 all are whole; 1 at least one was damaged; 2 bad usage.`

const verifyExample = `  gateway-agent wasm verify --data-dir /var/lib/gateway-agent`

const pruneHelp = `Prune removes modules that no process uses. Without --yes it says which, and removes nothing. Without --all, --older-than and --keep
they are what a running agent would drop by itself: older than --wasm-expiry, or more than --wasm-store-size.` + moduleExits +
	`0 done; 1 it failed; 2 bad usage.`

const pruneExample = `  gateway-agent wasm prune --older-than 720h
  gateway-agent wasm prune --keep 512MiB --yes`
