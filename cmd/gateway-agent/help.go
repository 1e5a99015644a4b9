package main

// All long help texts of the command line.

const rootHelp = `gateway-agent runs beside Envoy on ingress gateways, egress gateways and standalone edge hosts.

It relays xDS between Envoy and a control plane, or serves a directory of YAML files itself. It pulls remote
Wasm plugins from OCI registries, checks them and hands Envoy local files; it keeps the last one that worked
when a new one does not. It serves certificates from files, writes Envoy's bootstrap and restarts Envoy when
it dies.

  gateway-agent run --config-dir ./edge           serve a directory, no control plane needed
  gateway-agent run --xds-address xds.local:443   relay for a control plane
  gateway-agent wasm pull oci://host/repo:tag     fill the module store ahead of time
  gateway-agent status                            what runs, and if not, why not

Every long flag can also be a key of a YAML file given with --config, or a variable of the environment:
--xds-address is xds-address in the file and GATEWAY_AGENT_XDS_ADDRESS in the environment. The command line
wins over the environment, the environment over the file.

Exit codes: 0 done, or stopped because it was asked to; 2 the command line or the settings are wrong;
130 a second Ctrl-C, which waits for nothing; 1 anything else.`

const runHelp = `Run starts Envoy and everything it needs, and stays in front until SIGTERM or SIGINT.

The configuration comes from exactly one of two places:

--config-dir DIR    *.yaml, *.yml and *.json files, any number of documents each: the static_resources of an
                    existing envoy.yaml (a whole envoy.yaml is fine), or Envoy's filesystem xDS files
                    (resources: with @type). Edits go live within a second. A bad edit changes nothing: the
                    log and 'gateway-agent status' say file, line and reason.
--xds-address       an ADS server. TLS unless it is on loopback or --xds-plaintext is given.

A Wasm plugin's code may be oci://host/repo:tag, oci://host/repo@sha256:…, http(s):// or a local file.
Certificates named by file are served to Envoy by the agent: replace the files and new handshakes use them.

On SIGTERM the agent fails readiness, tells clients, waits --drain-delay, closes the listeners, waits for
requests in flight up to --drain-timeout, and ends Envoy. A SIGINT after that (Ctrl-C) ends it at once.`

const runExample = `  gateway-agent run --config-dir examples/edge
  gateway-agent run --xds-address istiod.example.com:15012 --xds-ca /etc/ca.pem --node-id edge-1
  gateway-agent run --config-dir /etc/edge --envoy=none    # something else starts Envoy
  GATEWAY_AGENT_LOG_FORMAT=json gateway-agent run --config /etc/gateway-agent.yaml`

const validateHelp = `Validate loads a configuration directory exactly as 'run' does and says what is wrong with it, file and line.
It starts nothing. With an Envoy at hand the bootstrap is checked by Envoy too.`

const bootstrapHelp = `Bootstrap prints the bootstrap that 'run' would give Envoy with the same flags, as JSON.`

const statusHelp = `Status asks the agent that runs in --run-dir and prints one screen: Envoy, where the configuration comes from,
listeners, each plugin with its digest, state and reason, certificates, and everything that is wrong.

Exit codes: 0 the gateway is ready; 1 it is not, or no agent answers; 2 bad usage.`

const versionHelp = `Version prints the agent's version, and with --envoy that of the Envoy it would run.`

const proxyHelp = `Proxy takes the place of 'pilot-agent proxy router' in an Istio gateway: the same arguments, environment variables, mounted
files, ports, paths and socket names. What they mean is turned into the settings of 'run'; --dry-run prints them.

Flags that this agent does not know are skipped with a warning. Variables and settings that do nothing here are named in
one warning each. Every flag of 'run' may be given too, on the command line or as GATEWAY_AGENT_… in the environment,
and wins over what Istio's settings say.

docs/istio.md tells how to change a gateway's Deployment, what is the same and what differs.`

const proxyExample = `  gateway-agent proxy router --domain $POD_NAMESPACE.svc.cluster.local --proxyLogLevel=warning
  gateway-agent proxy router --dry-run
  GATEWAY_AGENT_DRAIN_DELAY=15s gateway-agent proxy router`

const pilotAgentHelp = `These are the commands of Istio's pilot-agent, for callers that know that name: proxy, request, wait and version.`

const requestHelp = `Request asks Envoy's admin API, on the port that a gateway pod has or on the socket in --run-dir, and prints its answer and
nothing else. 'istioctl proxy-config' works through it.

Exit codes: 0 Envoy answered, with 404 too; 1 it did not, or said no; 2 bad usage.`

const waitHelp = `Wait asks until the gateway is ready.

Exit codes: 0 it is; 1 it was not in time; 2 bad usage.`
