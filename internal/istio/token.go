package istio

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"
)

// tokenFile is where the token for istiod and the CA is. Releases of Istio that know the first-party policy mount no other token than
// Kubernetes' with it; later ones mount theirs whatever the policy says.
func (m *mapping) tokenFile() string {
	switch policy := m.in.Env["JWT_POLICY"]; policy {
	case "", "third-party-jwt":
	case "first-party-jwt":
		if !m.exists(istioToken) {
			return kubernetesToken
		}
		m.warn("JWT_POLICY=first-party-jwt is out of date: the token for istiod, which is there, is used")
	default:
		m.warn("JWT_POLICY=%q is neither third-party-jwt nor first-party-jwt: the first is used", policy)
	}
	return istioToken
}

// claims are what a Kubernetes token says of the workload. Nobody has verified them: they only say what to ask for.
type claims struct {
	Subject    string `json:"sub"`
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Account   struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

// kubernetesName is a name that may stand in a SPIFFE id.
var kubernetesName = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`)

// whose is the workload's namespace and service account: what the variables say, else the token.
func (m *mapping) whose() (namespace, account string) {
	namespace, account = m.in.Env["POD_NAMESPACE"], m.in.Env["SERVICE_ACCOUNT"]
	if namespace != "" && account != "" {
		return namespace, account
	}
	ofNamespace, ofAccount := m.tokenSays()
	if account == "" && ofAccount != "" {
		m.warn("SERVICE_ACCOUNT is not set: %q is taken from the token", ofAccount)
	} else if account == "" {
		m.warn("SERVICE_ACCOUNT is not set, and the token does not tell: the CA is to know whose certificate this is")
	}
	if namespace == "" {
		namespace = ofNamespace
	}
	if account == "" {
		account = ofAccount
	}
	return namespace, account
}

// tokenSays reads the token's claims; one that cannot be read says nothing.
func (m *mapping) tokenSays() (namespace, account string) {
	text, err := m.in.ReadFile(m.abs(m.tokenFile()))
	if err != nil {
		return "", ""
	}
	parts := strings.Split(strings.TrimSpace(string(text)), ".")
	if len(parts) != 3 {
		return "", ""
	}
	body, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	var c claims
	if err != nil || json.Unmarshal(body, &c) != nil {
		return "", ""
	}
	namespace, account = c.Kubernetes.Namespace, c.Kubernetes.Account.Name
	if rest, ok := strings.CutPrefix(c.Subject, "system:serviceaccount:"); ok && (namespace == "" || account == "") {
		namespace, account, _ = strings.Cut(rest, ":")
	}
	if !kubernetesName.MatchString(namespace) || !kubernetesName.MatchString(account) {
		return "", ""
	}
	return namespace, account
}
