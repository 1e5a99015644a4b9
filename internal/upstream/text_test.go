package upstream

import "testing"

func TestPlain(t *testing.T) {
	for message, want := range map[string]string{
		"authentication failure": "authentication failure",
		"":                       "",
		`latest balancer error: connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`: "dial tcp 127.0.0.1:1: connect: connection refused",
		`connection error: desc = "transport: authentication handshake failed: a \"quoted\" name"`:                                            `authentication handshake failed: a "quoted" name`,
		`last connection error: connection error: desc = "transport: x" and more`:                                                             "x",
		"transport: per-RPC creds failed due to error: read the token: open /t: permission denied":                                            "read the token: open /t: permission denied",
		`connection error: desc = "cut off`: `connection error: desc = "cut off`,
	} {
		if got := Plain(message); got != want {
			t.Errorf("Plain(%q) = %q, want %q", message, got, want)
		}
	}
}
