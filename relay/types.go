package relay

const (
	typePrefix = "type.googleapis.com/"
	typeECDS   = typePrefix + "envoy.config.core.v3.TypedExtensionConfig"
	typeCDS    = typePrefix + "envoy.config.cluster.v3.Cluster"
	typeLDS    = typePrefix + "envoy.config.listener.v3.Listener"
	typeRDS    = typePrefix + "envoy.config.route.v3.RouteConfiguration"
	typeEDS    = typePrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	typeSDS    = typePrefix + "envoy.extensions.transport_sockets.tls.v3.Secret"
	typeNDS    = typePrefix + "istio.networking.nds.v1.NameTable"
	typePCDS   = typePrefix + "istio.mesh.v1alpha1.ProxyConfig"
	typeHealth = typePrefix + "istio.v1.HealthInformation"
	typeWrap   = typePrefix + "envoy.service.discovery.v3.Resource"
)

// shortName is the metrics label of a type; few values, whatever the peers send.
func shortName(typeURL string) string {
	switch typeURL {
	case typeECDS:
		return "ECDS"
	case typeCDS:
		return "CDS"
	case typeLDS:
		return "LDS"
	case typeRDS:
		return "RDS"
	case typeEDS:
		return "EDS"
	case typeSDS:
		return "SDS"
	case typeNDS:
		return "NDS"
	case typePCDS:
		return "PCDS"
	case typeHealth:
		return "health"
	}
	return "other"
}
