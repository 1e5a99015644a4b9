package ecds

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/gateway-agent/gateway-agent/internal/envoytext"
)

const maxEnvoyText = 500 // bytes of Envoy's words that are kept

// envoyText is what Envoy said without what it quotes of the plugin's configuration and environment.
func envoyText(err error) string { return envoytext.Public(err.Error(), maxEnvoyText) }

// shorten cuts s to at most n bytes without splitting a character.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// scrub removes a pull secret, and the parts of it that are secret by themselves, from a text about the resource. Its registry is named in
// both, and is none.
func (b *blueprint) scrub(text string) string {
	s := string(b.secret())
	if s == "" {
		return text
	}
	text = strings.ReplaceAll(text, s, "…")
	host := ""
	if u, err := url.Parse(b.ref.URL); err == nil {
		host = u.Host
	}
	for _, word := range strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("\"{}[],: \t\r\n", r) }) {
		// Short words are JSON's own keys (auths, auth, username…) and common names; a password this short protects nothing.
		if len(word) >= 8 && word != "username" && word != "password" && !strings.Contains(host, word) {
			text = strings.ReplaceAll(text, word, "…")
		}
	}
	return text
}

// publicURL is a module's URL without what may be secret in it: user information and query.
func publicURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		raw, _, _ = strings.Cut(raw, "?")
		if scheme, rest, ok := strings.Cut(raw, "://"); ok {
			if i := strings.LastIndexByte(rest, '@'); i >= 0 && !strings.Contains(rest[:i], "/") {
				rest = rest[i+1:]
			}
			return scheme + "://" + rest
		}
		return raw
	}
	u.User = nil
	u.Fragment = ""
	if u.RawQuery != "" {
		u.RawQuery = "…"
	}
	return u.String()
}
