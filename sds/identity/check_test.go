package identity

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gateway-agent/gateway-agent/internal/testca"
)

func mustID(t testing.TB, id string) *url.URL {
	t.Helper()
	u, err := parseID(id, false)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// crossed signs a root's key with another root: the certificate that links the new one to the old.
func crossed(t *testing.T, of, by *testca.CA) string {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: of.Cert.Subject.CommonName}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.Cert, of.Key.Public(), by.Key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestCheck(t *testing.T) {
	root, other := testca.New(t, "root"), testca.New(t, "other")
	sub := root.Sub(t, "sub")
	key := testca.NewKey(t, testca.P256)
	now := time.Now()
	sign := func(ca *testca.CA, pub crypto.PublicKey, l testca.Leaf) string {
		if l.Hosts == nil {
			l.Hosts = []string{testID}
		}
		_, text, err := ca.Sign(pub, l)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	good := sign(root, key.Public(), testca.Leaf{})
	below := sign(sub, key.Public(), testca.Leaf{})
	r, o, s := string(root.PEM), string(other.PEM), string(sub.PEM)
	keyPEM := string(testca.KeyPEM(t, key, testca.PKCS8))
	for name, tc := range map[string]struct {
		answer []string
		want   string // of the error; "": good
		chain  int    // certificates shown
		roots  int
		remark string
	}{
		"leaf and root":           {answer: []string{good, r}, chain: 1, roots: 1},
		"intermediate apart":      {answer: []string{below, s, r}, chain: 2, roots: 1},
		"intermediate in leaf":    {answer: []string{below + s, r}, chain: 2, roots: 1},
		"bundle":                  {answer: []string{good, o + r + r}, chain: 1, roots: 2},
		"root in between":         {answer: []string{good, r, r}, chain: 1, roots: 1},
		"comments":                {answer: []string{"leaf\n" + good, "# root\n" + r + "# end\n"}, chain: 1, roots: 1},
		"no newline":              {answer: []string{strings.TrimSpace(below), strings.TrimSpace(s), strings.TrimSpace(r)}, chain: 2, roots: 1},
		"linked to another root":  {answer: []string{good, r + crossed(t, root, other)}, chain: 2, roots: 2},
		"anchored in the middle":  {answer: []string{below, s}, chain: 2, roots: 1},
		"a little in the future":  {answer: []string{sign(root, key.Public(), testca.Leaf{NotBefore: now.Add(30 * time.Second)}), r}, chain: 1, roots: 1},
		"other trust domain":      {answer: []string{sign(root, key.Public(), testca.Leaf{Hosts: []string{"spiffe://td/ns/ingress/sa/gw"}}), r}, chain: 1, roots: 1, remark: "trust domain"},
		"nothing":                 {want: "has 0 texts"},
		"one text":                {answer: []string{good + r}, want: "has 1 texts"},
		"empty root":              {answer: []string{good, ""}, want: "the root: there is no certificate"},
		"empty leaf":              {answer: []string{"", r}, want: "the chain: there is no certificate"},
		"half a root":             {answer: []string{good, r + o[:300]}, want: "damaged"},
		"half a leaf":             {answer: []string{good[:300], s, r}, want: "damaged"},
		"garbage in PEM":          {answer: []string{"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", r}, want: "cannot be parsed"},
		"a key":                   {answer: []string{good, keyPEM}, want: "block of another type"},
		"somebody else's key":     {answer: []string{sign(root, testca.NewKey(t, testca.P256).Public(), testca.Leaf{}), r}, want: "not for the key of the request"},
		"wrong order":             {answer: []string{r, good}, want: "not for the key of the request"},
		"expired":                 {answer: []string{sign(root, key.Public(), testca.Leaf{NotAfter: now.Add(-time.Second)}), r}, want: "has expired at"},
		"far in the future":       {answer: []string{sign(root, key.Public(), testca.Leaf{NotBefore: now.Add(2 * time.Hour)}), r}, chain: 1, roots: 1, remark: "one of the clocks is wrong"},
		"another root":            {answer: []string{good, o}, want: "does not lead to the root"},
		"intermediate left out":   {answer: []string{below, r}, want: "does not lead to the root"},
		"another account":         {answer: []string{sign(root, key.Public(), testca.Leaf{Hosts: []string{"spiffe://cluster.local/ns/ingress/sa/x"}}), r}, want: "are namespace and service account"},
		"no id":                   {answer: []string{sign(root, key.Public(), testca.Leaf{Hosts: []string{"localhost"}}), r}, want: "want one SPIFFE id"},
		"two ids":                 {answer: []string{sign(root, key.Public(), testca.Leaf{Hosts: []string{testID, testID + "2"}}), r}, want: "want one SPIFFE id"},
		"a web address":           {answer: []string{sign(root, key.Public(), testca.Leaf{Hosts: []string{"https://cluster.local/ns/ingress/sa/gw"}}), r}, want: "want one SPIFFE id"},
		"many in between":         {answer: []string{below + strings.Repeat(s, 30), r}, want: "has 31 certificates"},
		"too large":               {answer: []string{good, strings.Repeat(r, 3000)}, want: "want at most 1048576"},
		"more roots than anybody": {answer: []string{good, strings.Repeat(r, 1001)}, want: "more than 1000"},
	} {
		c, err := check(tc.answer, key, []byte(keyPEM), mustID(t, testID), now)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
			continue
		}
		if err != nil {
			if strings.Contains(err.Error(), "BEGIN") || len(err.Error()) > 600 {
				t.Errorf("%s: the error quotes the answer: %v", name, err)
			}
			continue
		}
		if len(c.chain) != tc.chain || len(c.roots) != tc.roots || !c.chain[0].Equal(c.leaf) {
			t.Errorf("%s: %d certificates shown, %d roots, want %d, %d", name, len(c.chain), len(c.roots), tc.chain, tc.roots)
		}
		if c.ends.After(c.leaf.NotAfter) || c.ends.IsZero() {
			t.Errorf("%s: ends at %v", name, c.ends)
		}
		if got := strings.Join(c.remarks, " "); !strings.Contains(got, tc.remark) || (got == "") != (tc.remark == "") {
			t.Errorf("%s: remarks %q", name, got)
		}
	}
}

// Whatever an authority answers, a credential that comes out of it works.
func FuzzCheck(f *testing.F) {
	root := testca.New(f, "root")
	key := testca.NewKey(f, testca.P256)
	_, leaf, err := root.Sub(f, "sub").Sign(key.Public(), testca.Leaf{Hosts: []string{testID}, NotAfter: time.Now().AddDate(1, 0, 0)})
	if err != nil {
		f.Fatal(err)
	}
	sub := root.Sub(f, "sub")
	f.Add(string(leaf), string(sub.PEM), string(root.PEM))
	f.Add(string(leaf)+string(sub.PEM), "", string(root.PEM)+string(root.PEM))
	f.Add(string(leaf[:200]), "# text\n", string(testca.KeyPEM(f, key, testca.SEC1)))
	id := mustID(f, testID)
	f.Fuzz(func(t *testing.T, first, second, last string) {
		c, err := check([]string{first, second, last}, key, nil, id, time.Now())
		if err != nil {
			if strings.Contains(err.Error(), "-----BEGIN") {
				t.Errorf("the error quotes PEM: %v", err)
			}
			return
		}
		if len(c.chain) == 0 || len(c.roots) == 0 || c.life() <= 0 || c.leaf.URIs[0].Path != id.Path {
			t.Errorf("credential: %+v", c)
		}
	})
}

// A leaf that outlives what it hangs on is good only as long as that.
func TestEndOfTheChainCounts(t *testing.T) {
	root := testca.New(t, "root")
	key := testca.NewKey(t, testca.P256)
	now := time.Now()
	link := crossed(t, root, testca.New(t, "above")) // ends in an hour
	block, _ := pem.Decode([]byte(link))
	short, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	_, leaf, err := (&testca.CA{Cert: short, Key: root.Key}).Sign(key.Public(), testca.Leaf{Hosts: []string{testID}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := check([]string{string(leaf), link}, key, nil, mustID(t, testID), now)
	if err != nil || !c.ends.Equal(short.NotAfter) || c.life() > time.Hour {
		t.Errorf("check: %v, life %v, want the hour of the chain", err, c.life())
	}
}

func TestParseID(t *testing.T) {
	for id, want := range map[string]string{
		testID:                              "",
		ID("td.example", "ns", "sa"):        "",
		"spiffe://td/x":                     "",
		"":                                  "must be spiffe://",
		"https://td/ns/a/sa/b":              "must be spiffe://",
		"spiffe://td":                       "must be spiffe://",
		"spiffe://td/":                      "must be spiffe://",
		"spiffe:///ns/a/sa/b":               "must be spiffe://",
		"spiffe:td/ns":                      "must be spiffe://",
		ID("td", "", "sa"):                  "is the namespace or the service account missing",
		ID("td", "ns", ""):                  "is the namespace or the service account missing",
		"spiffe://td/ns/../sa/b":            "is the namespace",
		"spiffe://td:80/ns/a":               "more than a trust domain",
		"spiffe://u@td/ns/a":                "more than a trust domain",
		"spiffe://td/ns/a?b":                "more than a trust domain",
		"spiffe://td/ns/a#b":                "more than a trust domain",
		"spiffe://td/ns/a b":                "more than a trust domain",
		"spiffe://td/ns/\x00":               "SPIFFE id",
		"spiffe://" + "td/%zz":              "SPIFFE id",
		ID("td", "ns", "sa\nCertSigner: x"): "SPIFFE id",
	} {
		_, err := parseID(id, false)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("parseID(%q): %v, want %q", id, err, want)
		}
	}
}
