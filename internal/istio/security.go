package istio

import (
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/gateway-agent/gateway-agent/internal/upstream"
)

const (
	systemRoots     = "SYSTEM"
	xdsHeaderPrefix = "XDS_HEADER_"
	caHeaderPrefix  = "CA_HEADER_"
	plaintextPort   = "15010"
	istiodName      = "istiod.istio-system.svc"
	gkeProvider     = "GkeWorkloadCertificate"
)

// mapControlPlane says how istiod is reached, for configuration and for certificates.
func (m *mapping) mapControlPlane() {
	address := m.proxy.GetDiscoveryAddress()
	if _, _, err := net.SplitHostPort(address); err != nil {
		m.fail("ProxyConfig discoveryAddress %q: want HOST:PORT", address)
	}
	cert, key := m.clientCertificate()
	m.out.ControlPlane = Server{
		Address:        address,
		Plaintext:      m.proxy.GetControlPlaneAuthPolicy() == meshv1alpha1.AuthenticationPolicy_NONE,
		ServerName:     m.serverName(),
		RootFile:       m.xdsRoot(),
		TokenFile:      m.abs(m.tokenFile()),
		PlaintextToken: m.flag("XDS_AUTH_PLAINTEXT"),
		CertFile:       cert,
		KeyFile:        key,
		Header:         m.header(xdsHeaderPrefix),
	}
	m.out.StateOfTheWorld = !m.flagOr("ISTIO_DELTA_XDS", true)
	m.out.CA = m.out.ControlPlane
	m.out.CA.Address = m.caAddress(address)
	m.out.CA.Plaintext = strings.HasSuffix(m.out.CA.Address, ":"+plaintextPort)
	m.out.CA.ServerName = m.caName(address)
	m.out.CA.RootFile = m.caRoot()
	m.out.CA.Header = m.header(caHeaderPrefix)
	m.out.ReportHealth = m.proxy.GetReadinessProbe() != nil
	m.out.TrustToo = m.flag("PROXY_CONFIG_XDS_AGENT")
}

// caAddress is istiod's, unless CA_ADDR says another.
func (m *mapping) caAddress(without string) string {
	address := strings.TrimSpace(m.in.Env["CA_ADDR"])
	if address == "" {
		return without
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		m.fail("CA_ADDR %q: want HOST:PORT", address)
	}
	return address
}

// serverName is the name in istiod's certificate.
func (m *mapping) serverName() string {
	if name := m.in.Env["ISTIOD_SAN"]; name != "" {
		return name
	}
	return hostOf(m.proxy.GetDiscoveryAddress())
}

// caName is the name in the CA's: istiod's own, unless the CA is somewhere else.
func (m *mapping) caName(istiod string) string {
	if m.out.CA.Address == istiod {
		return m.serverName()
	}
	return hostOf(m.out.CA.Address)
}

// hostOf is istiod's name at an address.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if strings.Contains(host, "localhost") {
		return istiodName
	}
	return host
}

const clusterHeader = "ClusterID"

// header is the gRPC metadata of every stream: the cluster, and what variables with the prefix add. Values are never shown: they may be
// secrets.
func (m *mapping) header(prefix string) map[string]string {
	header := map[string]string{clusterHeader: m.clusterID()}
	if upstream.CheckHeader(header) != nil {
		m.fail("ISTIO_META_CLUSTER_ID %q has characters that cannot be sent to istiod: use printable ASCII", m.clusterID())
	}
	for _, name := range slices.Sorted(maps.Keys(m.in.Env)) {
		key, ok := strings.CutPrefix(name, prefix)
		if !ok || key == "" {
			continue
		}
		if strings.EqualFold(key, clusterHeader) {
			m.warn("%s is ignored: ISTIO_META_CLUSTER_ID says what it is", name)
			continue
		}
		all := maps.Clone(header)
		all[key] = m.in.Env[name]
		if err := upstream.CheckHeader(all); err != nil {
			m.warn("%s is ignored: %v", name, err)
			continue
		}
		header = all
	}
	return header
}

// xdsRoot is the file with the CAs that may sign istiod's certificate, "" for the system's.
func (m *mapping) xdsRoot() string {
	if root, ok := m.chosenRoot("XDS_ROOT_CA"); ok {
		return root
	}
	if file := filepath.Join(legacyFiles, "root-cert.pem"); m.exists(file) {
		return m.abs(file)
	}
	return m.provisionedRoot(true)
}

// caRoot is the same for the CA.
func (m *mapping) caRoot() string {
	if root, ok := m.chosenRoot("CA_ROOT_CA"); ok {
		return root
	}
	if m.in.Env["PILOT_CERT_PROVIDER"] == "custom" {
		return m.abs(filepath.Join(legacyFiles, "root-cert.pem"))
	}
	return m.provisionedRoot(false)
}

func (m *mapping) chosenRoot(variable string) (string, bool) {
	value := m.in.Env[variable]
	if value == systemRoots {
		return "", true
	}
	return m.abs(value), value != ""
}

func (m *mapping) provisionedRoot(filesToo bool) string {
	if dir := m.in.Env["PROV_CERT"]; dir != "" {
		return m.abs(filepath.Join(dir, "root-cert.pem"))
	}
	if filesToo && m.flag("FILE_MOUNTED_CERTS") {
		if file := m.metaText("TLS_CLIENT_ROOT_CERT", ""); file != "" {
			return m.abs(file)
		}
	}
	return m.abs(istioRoot)
}

// clientCertificate is what istiod and the CA are shown besides the token.
func (m *mapping) clientCertificate() (cert, key string) {
	if dir := m.in.Env["PROV_CERT"]; dir != "" {
		return m.abs(filepath.Join(dir, "cert-chain.pem")), m.abs(filepath.Join(dir, "key.pem"))
	}
	if !m.flag("FILE_MOUNTED_CERTS") {
		return "", ""
	}
	cert, key = m.abs(m.metaText("TLS_CLIENT_CERT_CHAIN", "")), m.abs(m.metaText("TLS_CLIENT_KEY", ""))
	if (cert == "") != (key == "") {
		m.fail("FILE_MOUNTED_CERTS: ISTIO_META_TLS_CLIENT_CERT_CHAIN and ISTIO_META_TLS_CLIENT_KEY belong together: set both or neither")
	}
	return cert, key
}

// workloadSocket is the name of a foreign SDS server's socket, in a directory that nobody chooses.
func (m *mapping) workloadSocket() string {
	value := m.text("WORKLOAD_IDENTITY_SOCKET_FILE", workloadSockName)
	name := filepath.Base(value)
	if name != value {
		m.warn("WORKLOAD_IDENTITY_SOCKET_FILE=%q is a path: %s is used, in %s", value, name, workloadSDS)
	}
	return name
}

// mapIdentity says where the workload's certificate may come from; which it is, the agent sees when it starts.
func (m *mapping) mapIdentity() {
	m.out.SDSSocket = m.abs(filepath.Join(workloadSDS, workloadSockName))
	name := m.workloadSocket()
	m.out.WorkloadSocket = m.abs(filepath.Join(workloadSDS, name))
	m.out.WorkloadSocketMust = name != workloadSockName // who names another one wants that issuer, not istiod's CA instead
	m.out.Workload = m.workload()
	m.out.WorkloadGKE = m.in.Env["CA_PROVIDER"] == gkeProvider
	if m.out.WorkloadGKE || m.flag("FILE_MOUNTED_CERTS") {
		m.out.CA, m.out.WorkloadSocket, m.out.WorkloadSocketMust = Server{}, "", false
		return
	}
	m.checkProviders()
}

func (m *mapping) workload() Workload {
	namespace, account := m.whose()
	w := Workload{
		TrustDomain:    m.text("TRUST_DOMAIN", clusterDomain),
		Namespace:      namespace,
		ServiceAccount: account,
		CertSigner:     m.metaText("CERT_SIGNER", ""),
		TTL:            m.duration("SECRET_TTL", 24*time.Hour),
		GraceRatio:     m.ratio("SECRET_GRACE_PERIOD_RATIO", 0.5),
		GraceJitter:    m.ratio("SECRET_GRACE_PERIOD_RATIO_JITTER", 0.01),
		KeyType:        "ecdsa",
		RSABits:        m.number("WORKLOAD_RSA_KEY_SIZE", 2048, 2048, 8192),
		Curve:          m.text("ECC_CURVE", "P256"),
		PKCS8:          m.flag("PKCS8_KEY"),
		CRLFile:        m.abs(istioCRL),
		OutputDir:      m.abs(m.in.Env["OUTPUT_CERTS"]),
		OutputShared:   m.in.Env["KUBERNETES_SERVICE_HOST"] != "",
	}
	if algorithm := m.in.Env["ECC_SIGNATURE_ALGORITHM"]; algorithm != "" && algorithm != "ECDSA" {
		m.warn("ECC_SIGNATURE_ALGORITHM=%q: only ECDSA is known, it is used", algorithm)
	} else if algorithm == "" && m.in.Env["WORKLOAD_RSA_KEY_SIZE"] != "" {
		w.KeyType = "rsa"
	}
	if w.Curve != "P256" && w.Curve != "P384" {
		m.warn("ECC_CURVE=%q is neither P256 nor P384: P256 is used", w.Curve)
		w.Curve = "P256"
	}
	return w
}

// checkProviders tells of providers that this agent has not.
func (m *mapping) checkProviders() {
	if provider := m.in.Env["CA_PROVIDER"]; provider != "" && provider != "Citadel" {
		m.warn("CA_PROVIDER=%q is not known here: certificates are asked for as Citadel's, at %s", provider, m.out.CA.Address)
	}
	if fetcher := m.in.Env["CREDENTIAL_FETCHER_TYPE"]; fetcher != "" && fetcher != "JWT" {
		m.warn("CREDENTIAL_FETCHER_TYPE=%q is not known here: the token is read from %s", fetcher, m.out.ControlPlane.TokenFile)
	}
}
