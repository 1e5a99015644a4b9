package istio

import (
	"net/netip"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

const (
	defaultClusterID     = "Kubernetes"
	clusterDomain        = "cluster.local"
	excludeInterfaces    = "traffic.sidecar.istio.io/excludeInterfaces"
	localityLabel        = "istio-locality"
	templateHashLabel    = "pod-template-hash"
	canonicalNameLabel   = "service.istio.io/canonical-name"
	recommendedNameLabel = "app.kubernetes.io/name"
	appLabel             = "app"
)

func (m *mapping) mapNode() {
	domain := m.domain()
	namespace := m.in.Env["POD_NAMESPACE"]
	if strings.Contains(domain, "~") {
		m.fail("--domain %q: a '~' would break the node id", domain)
	}
	addresses := m.addresses()
	m.out.NodeID = strings.Join([]string{m.in.Role, addresses[0], m.in.Env["POD_NAME"] + "." + namespace, domain}, "~")
	for _, name := range []string{"POD_NAME", "POD_NAMESPACE"} {
		if m.in.Env[name] == "" {
			m.warn("%s is not set: istiod cannot tell which pod this is", name)
		}
	}
	m.out.Metadata = m.metadata(addresses)
	m.out.NodeCluster = m.nodeCluster(namespace)
	m.out.Locality = m.locality()
}

// domain is where the node's services are.
func (m *mapping) domain() string {
	if domain := m.in.Args.Domain; domain != "" {
		return domain
	}
	return m.in.Env["POD_NAMESPACE"] + ".svc." + clusterDomain
}

// addresses are the pod's, its own first: istiod takes the first for the pod's.
func (m *mapping) addresses() []string {
	var all []string
	if pod, err := netip.ParseAddr(m.in.Env["INSTANCE_IP"]); err == nil {
		all = append(all, pod.String())
	} else if value := m.in.Env["INSTANCE_IP"]; value != "" {
		m.warn("INSTANCE_IP=%q is not an address: ignored", value)
	}
	excluded := list(m.annotations[excludeInterfaces])
	for _, face := range m.in.Interfaces {
		if face.Loopback || slices.Contains(excluded, face.Name) {
			continue
		}
		for _, ip := range face.Addresses {
			if ip = ip.Unmap().WithZone(""); usable(ip) && !slices.Contains(all, ip.String()) {
				all = append(all, ip.String())
			}
		}
	}
	if len(all) == 0 {
		return []string{"127.0.0.1", "::1"}
	}
	return all
}

func usable(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !ip.IsLinkLocalMulticast() && !ip.IsUnspecified()
}

// nodeCluster is what traces and access logs call this gateway.
func (m *mapping) nodeCluster(namespace string) string {
	labels, _ := m.out.Metadata["LABELS"].(map[string]any)
	workload, _ := m.out.Metadata["WORKLOAD_NAME"].(string)
	switch name := m.proxy.GetClusterName().(type) {
	case *meshv1alpha1.ProxyConfig_ServiceCluster:
		return clusterOrDefault(name.ServiceCluster, labels, workload, namespace)
	case *meshv1alpha1.ProxyConfig_TracingServiceName_:
		canonical := canonicalName(labels, workload)
		switch name.TracingServiceName {
		case meshv1alpha1.ProxyConfig_CANONICAL_NAME_ONLY:
			return clusterOrDefault(canonical, labels, workload, namespace)
		case meshv1alpha1.ProxyConfig_CANONICAL_NAME_AND_NAMESPACE:
			return dotted(canonical, namespace)
		}
	}
	return clusterOrDefault("", labels, workload, namespace)
}

func clusterOrDefault(name string, labels map[string]any, workload, namespace string) string {
	if name != "" && name != defaultServiceCluster {
		return name
	}
	if app, ok := labels[appLabel].(string); ok {
		return dotted(app, namespace)
	}
	if workload != "" {
		return dotted(workload, namespace)
	}
	return dotted(defaultServiceCluster, namespace)
}

func dotted(name, namespace string) string {
	if namespace == "" {
		return name
	}
	return name + "." + namespace
}

func canonicalName(labels map[string]any, workload string) string {
	for _, label := range []string{canonicalNameLabel, recommendedNameLabel, appLabel} {
		if name, ok := labels[label].(string); ok && name != "" {
			return name
		}
	}
	if workload == "" {
		return defaultServiceCluster
	}
	return workload
}

// locality comes from the label istio-locality, region/zone/subzone; in a label the slashes may be dots.
func (m *mapping) locality() Locality {
	labels, _ := m.out.Metadata["LABELS"].(map[string]any)
	text, _ := labels[localityLabel].(string)
	if text == "" {
		return Locality{}
	}
	if !strings.Contains(text, "/") {
		text = strings.ReplaceAll(text, ".", "/")
		labels[localityLabel] = text
	}
	parts := append(strings.SplitN(text, "/", 3), "", "")
	return Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
}
