# The agent beside an Envoy of your choice, for linux/amd64 and linux/arm64:
#
#   docker buildx build --platform linux/amd64,linux/arm64 -t registry.example.com/gateway-agent:1 .
#
# For a gateway in an Istio mesh take Istio's Envoy (docs/istio.md says when that matters):
#
#   docker buildx build --build-arg ENVOY=docker.io/istio/proxyv2:1.30.0-distroless …

ARG ENVOY=docker.io/envoyproxy/envoy:distroless-v1.40.0
ARG GOLANG=docker.io/library/golang:1.26.8

# Go compiles for the target on the machine that builds: nothing is emulated.
FROM --platform=$BUILDPLATFORM ${GOLANG} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -tags grpcnotrace -ldflags "-s -w -X main.version=$VERSION" -o /image/usr/local/bin/gateway-agent ./cmd/gateway-agent
# Under this second name the binary takes pilot-agent's command line. The directories are what it writes to, for a root file
# system that is read-only they are mounts; 1337 is the user that Istio's injector runs gateways as.
RUN ln -s gateway-agent /image/usr/local/bin/pilot-agent \
 && mkdir -p /image/etc/istio/proxy /image/var/lib/istio/data /image/var/lib/gateway-agent /image/run/gateway-agent \
 && chown -R 1337:1337 /image/etc/istio /image/var/lib/istio /image/var/lib/gateway-agent /image/run/gateway-agent

FROM ${ENVOY}
COPY --from=build /image/ /
WORKDIR /
USER 1337:1337
ENTRYPOINT ["/usr/local/bin/gateway-agent"]
