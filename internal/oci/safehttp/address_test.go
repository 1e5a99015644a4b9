package safehttp

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestAddresses(t *testing.T) {
	tests := []struct {
		address       string
		home, foreign bool // may be dialled
	}{
		{"93.184.216.34", true, true},
		{"10.1.2.3", true, true},
		{"192.168.0.1", true, true},
		{"fd12::1", true, true},
		{"2606:4700::1", true, true},
		{"127.0.0.1", true, false},
		{"127.8.8.8", true, false},
		{"::1", true, false},
		{"::ffff:127.0.0.1", true, false},
		{"169.254.169.254", false, false},
		{"169.254.0.1", false, false},
		{"::ffff:169.254.169.254", false, false},
		{"64:ff9b::a9fe:a9fe", false, false},
		{"64:ff9b:1::a9fe:a9fe", false, false},
		{"64:ff9b:1::a00:1", true, true},
		{"2002:a9fe:a9fe::1", false, false},
		{"2002:a00:1::1", true, true},
		{"fe80::1", false, false},
		{"fe80::1%eth0", false, false},
		{"fd00:ec2::254", false, false},
		{"100.100.100.200", false, false},
		{"0.0.0.0", false, false},
		{"0.1.2.3", false, false},
		{"::", false, false},
		{"224.0.0.1", false, false},
		{"ff02::1", false, false},
		{"255.255.255.255", false, false},
	}
	for _, tt := range tests {
		for loopback, want := range map[bool]bool{true: tt.home, false: tt.foreign} {
			err := checkAddress(netip.MustParseAddr(tt.address), loopback)
			refused, ok := errors.AsType[*RefusedError](err)
			if ok == want || (ok && !strings.Contains(refused.Error(), "connection to ")) {
				t.Errorf("checkAddress(%s, loopback %v) = %v, want allowed %v", tt.address, loopback, err, want)
			}
		}
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "LOCALHOST:1": true, "x.localhost": true, "127.0.0.1:80": true, "127.1.1.1": true, "[::1]:80": true, "::1": true,
		"localhost.example": false, "127.0.0.1.example": false, "10.0.0.1": false, "": false, "notlocalhost": false,
	} {
		if got := IsLoopback(host); got != want {
			t.Errorf("IsLoopback(%q) = %v, want %v", host, got, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "-5": 0, "999999999999": time.Hour, "soon": 0,
		"Mon, 01 Jan 2001 00:00:00 GMT": 0, "Mon, 01 Jan 2999 00:00:00 GMT": time.Hour,
	} {
		if got := retryAfter(value); got != want {
			t.Errorf("retryAfter(%q) = %v, want %v", value, got, want)
		}
	}
}

func TestSchemes(t *testing.T) {
	tests := []struct {
		home  string
		plain bool
		url   string
		want  string
	}{
		{"registry.test", false, "http://registry.test/v2/", "plain HTTP to registry.test"},
		{"10.0.0.1:5000", false, "http://10.0.0.1:5000/v2/", "plain HTTP to 10.0.0.1:5000"},
		{"127.0.0.1:5000", false, "http://registry.test/v2/", "plain HTTP to registry.test"},
		{"registry.test", false, "http://127.0.0.1:1/", "plain HTTP to 127.0.0.1:1"},
		{"registry.test", true, "ftp://registry.test/", "scheme ftp"},
		{"registry.test", true, "file:///etc/passwd", "scheme file"},
	}
	for _, tt := range tests {
		u, err := url.Parse(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(Config{}).Transport(tt.home, tt.plain).RoundTrip(&http.Request{URL: u, Header: http.Header{}})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("from %s to %s: %v, want a refusal that says %q", tt.home, tt.url, err, tt.want)
		}
	}
}
