// Package gatewayagent holds the tests of the repository's structure; the program is in cmd/gateway-agent.
package gatewayagent
