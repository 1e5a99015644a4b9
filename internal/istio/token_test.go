package istio

import (
	"encoding/base64"
	"strings"
	"testing"
)

// token is an unsigned one with these claims.
func token(claims string) string {
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return encode(`{"alg":"RS256"}`) + "." + encode(claims) + "." + encode("signature") + "\n"
}

func TestIdentityOfTheToken(t *testing.T) {
	const (
		full    = `{"aud":["istio-ca"],"kubernetes.io":{"namespace":"shop","serviceaccount":{"name":"web","uid":"1"}},"sub":"system:serviceaccount:x:y"}`
		subject = `{"sub":"system:serviceaccount:shop:web"}`
	)
	for name, tt := range map[string]struct {
		token              string
		namespace, account string // variables
		want               string // namespace/account
	}{
		"variables":           {full, "ingress", "gw", "ingress/gw"},
		"claim":               {token(full), "", "", "shop/web"},
		"subject":             {token(subject), "", "", "shop/web"},
		"padded":              {strings.Replace(token(subject), ".c", "=.c", 1), "", "", "shop/web"},
		"account alone":       {token(full), "ingress", "", "ingress/web"},
		"namespace alone":     {token(full), "", "gw", "shop/gw"},
		"no token":            {"", "", "", "/"},
		"no JWT":              {"token-1", "", "gw", "/gw"},
		"no JSON":             {token("claims"), "", "", "/"},
		"not of Kubernetes":   {token(`{"sub":"me"}`), "", "", "/"},
		"other types":         {token(`{"sub":["a"],"kubernetes.io":1}`), "", "", "/"},
		"no names":            {token(`{"sub":"system:serviceaccount:../../etc:a/b"}`), "", "", "/"},
		"three names":         {token(`{"sub":"system:serviceaccount:a:b:c"}`), "", "", "/"},
		"half a claim, whole": {token(`{"kubernetes.io":{"namespace":"shop"},"sub":"system:serviceaccount:a:b"}`), "", "", "a/b"},
	} {
		s, warnings, err := try(t, func(p *pod) {
			p.env["POD_NAMESPACE"], p.env["SERVICE_ACCOUNT"] = tt.namespace, tt.account
			if p.files["/var/run/secrets/tokens/istio-token"] = tt.token; tt.token == "" {
				delete(p.files, "/var/run/secrets/tokens/istio-token")
			}
		})
		if got := s.Workload.Namespace + "/" + s.Workload.ServiceAccount; err != nil || got != tt.want {
			t.Errorf("%s: identity of %s, %v; want %s", name, got, err, tt.want)
		}
		if told := strings.Contains(strings.Join(warnings, "\n"), "SERVICE_ACCOUNT is not set"); told != (tt.account == "") {
			t.Errorf("%s: warnings %q", name, warnings)
		}
		if strings.Contains(strings.Join(warnings, "\n"), "signature") || len(warnings) > 2 {
			t.Errorf("%s: warnings %q", name, warnings)
		}
	}
}
