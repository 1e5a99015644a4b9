# The agent beside an Envoy of your choice, for linux/amd64 and linux/arm64. `make image` builds this with docker buildx; by hand it is
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v1 -t registry.example.com/gateway-agent:v1 --push .
#
# For a gateway in an Istio mesh take Istio's Envoy (docs/istio.md says when that matters), of the release that the mesh has:
#
#   docker buildx build --build-arg ENVOY=docker.io/istio/proxyv2:1.30.0-distroless …
#
# `make image-check` builds the same file without the bases and without a daemon, and looks at what comes out.

ARG ENVOY=docker.io/envoyproxy/envoy:distroless-v1.40.0
ARG GOLANG=docker.io/library/golang:1.26.8

# Go compiles for the target on the machine that builds: nothing is emulated.
FROM --platform=$BUILDPLATFORM ${GOLANG} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
ARG REVISION=
# The flags are the Makefile's.
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -tags grpcnotrace \
    -ldflags "-s -w -X main.version=$VERSION -X main.revision=$REVISION" -o /image/usr/local/bin/gateway-agent ./cmd/gateway-agent
# Under its second name the binary takes pilot-agent's command line. The directories are what it writes to, for a root file system that is
# read-only they are mounts; 1337 is the user that Istio's injector runs gateways as.
RUN install -D -m 644 LICENSE /image/usr/share/doc/gateway-agent/LICENSE \
 && ln -s gateway-agent /image/usr/local/bin/pilot-agent \
 && mkdir -p /image/etc/istio/proxy /image/var/lib/istio/data /image/var/lib/gateway-agent /image/run/gateway-agent \
 && chown -R 1337:1337 /image/etc/istio /image/var/lib/istio /image/var/lib/gateway-agent /image/run/gateway-agent

FROM ${ENVOY}
ARG ENVOY
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="gateway-agent" \
      org.opencontainers.image.description="gateway-agent beside Envoy, for ingress and egress gateways" \
      org.opencontainers.image.source="https://github.com/gateway-agent/gateway-agent" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.base.name="$ENVOY"
COPY --from=build /image/ /
# Without --data-dir and --run-dir, `run` takes the directories above.
ENV XDG_STATE_HOME=/var/lib XDG_RUNTIME_DIR=/run
WORKDIR /
USER 1337:1337
ENTRYPOINT ["/usr/local/bin/gateway-agent"]
